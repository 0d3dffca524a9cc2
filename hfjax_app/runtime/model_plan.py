"""The results of planning one model: facts from its config, and the compiler's figures of its programs."""

from dataclasses import dataclass

from hfjax_app.runtime.programs import ProgramReport


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A model as its config and tokenizer describe it.

    Args:
        architecture: the class that runs it.
        parameters: their number.
        bytes: of all weights in `dtype`.
        dtype: in words.
        has_template: whether it has a chat template; None if it is no chat model or its tokenizer is missing.
        end_tokens: ids that end an answer; None if it is no chat model.
        has_tokenizer: whether its tokenizer was found. A plan does not need it; serving does.
    """

    architecture: str
    parameters: int
    bytes: int
    dtype: str
    has_template: bool | None = None
    end_tokens: tuple[int, ...] | None = None
    has_tokenizer: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model compiled for some devices.

    Args:
        weights: bytes of the weights on each device that holds the model, computed from shapes.
        resident: bytes of all arrays that stay on such a device, from the compiler, with the padding of layouts.
        programs: the compiler's reports.
        too_large: the program that the compiler refused, and why; later programs were not tried, and `resident` is
            computed from shapes. None if it refused none.
    """

    weights: int
    resident: int
    programs: tuple[ProgramReport, ...]
    too_large: str | None = None

    @property
    def temporary(self) -> int:
        """Bytes of the largest temporary memory of a program: one program runs at a time."""
        return max((program.temporary for program in self.programs), default=0)

    @property
    def peak(self) -> int:
        return self.resident + self.temporary
