"""What the engine needs of a constraint on an answer. `chat/text/grammar.py` has one made of a grammar."""

from typing import Protocol

import numpy as np


class Constraint(Protocol):
    """The tokens that an answer may go on with. It belongs to one request; only the engine's thread calls it.

    Attributes:
        allowed: uint32 [words], as in TokenMasks; not all zeros until the answer is complete. Holds the end tokens
            where the answer may end.
        is_complete: whether no token but an end token can follow.
    """

    @property
    def allowed(self) -> np.ndarray: ...

    @property
    def is_complete(self) -> bool: ...

    def accept(self, token: int) -> None:
        """Add a token to the answer, no end token; takes milliseconds at most.

        Raises:
            ConstraintFailed: what may follow can't be told.
        """
