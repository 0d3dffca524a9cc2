"""What a trace of an architecture tells, kept in the bundle of its programs so that later starts need no trace."""

from typing import NamedTuple

from hfjax_app.runtime.bundle import Bundle

_NAME = "decoder"


class TracedFacts(NamedTuple):
    """What a trace of one token's forward tells about an architecture.

    Attributes:
        needs_mask: whether it gets a mask that masks nothing, because without one it makes its own.
        continues: whether it uses its previous states when it gets several tokens.
    """

    needs_mask: bool
    continues: bool

    @classmethod
    def of(cls, bundle: Bundle | None) -> "TracedFacts | None":
        """The facts in a bundle; None where there are none."""
        found = None if bundle is None else bundle.facts.get(_NAME)
        if not isinstance(found, list) or [type(value) for value in found] != [bool] * len(cls._fields):
            return None
        return cls(*found)

    def keep(self, bundle: Bundle | None) -> None:
        """Keep the facts in a bundle, if there is one that doesn't have them."""
        if bundle is not None and self.of(bundle) != self:
            bundle.keep_facts(bundle.facts | {_NAME: list(self)})
