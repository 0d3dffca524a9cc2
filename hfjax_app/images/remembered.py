"""What a text encoder's program made of the last tokens, so that the next picture of a prompt needs no text encoder."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hfjax_app.limits import IMAGE_REMEMBERED_BYTES
from hfjax_app.runtime.programs import Program


class Remembered:
    """A program of a text encoder that keeps its last results in the host's memory. Not thread-safe.

    Args:
        program: from weights and arguments to arrays.
    """

    def __init__(self, program: Program):
        self._program = program
        self._results: OrderedDict[Any, list[np.ndarray]] = OrderedDict()
        self._bytes = 0

    def __call__(self, weights: Any, loras: str, arguments: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """The program's results, which the caller may change.

        Args:
            weights: of the text encoder.
            loras: that are merged into them, which tell weights apart.
            arguments: the program's.
        """
        key = loras, *(None if array is None else (array.shape, array.tobytes()) for array in arguments)
        if key not in self._results:
            found = [np.asarray(result) for result in self._program(weights, arguments)]
            self._results[key] = found
            self._bytes += sum(result.nbytes for result in found)
            while self._bytes > IMAGE_REMEMBERED_BYTES and len(self._results) > 1:
                _, oldest = self._results.popitem(last=False)
                self._bytes -= sum(result.nbytes for result in oldest)
        self._results.move_to_end(key)
        return [np.array(result) for result in self._results[key]]
