"""The checks of the entries of a file in runtime/seams/."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hfjax_app
from hfjax_app.runtime.seams import Seam

ROOT = Path(hfjax_app.__file__).parent
Check = Callable[[pytest.MonkeyPatch, Path], Any]


class Checks:
    """A check for each entry of a file.

    Args:
        file: the module with the entries.
    """

    def __init__(self, file: ModuleType):
        self._file = file
        self._checks: dict[str, Check] = {}

    def __call__(self, name: str) -> Callable[[Check], Check]:
        """The check of the entry of this name: it fails if the part is not there, or the change no longer needed."""

        def add(function: Check) -> Check:
            self._checks[name] = function
            return function

        return add

    def test(self) -> Callable[[Seam, pytest.MonkeyPatch, Path], None]:
        """A test of all entries, to be made when all checks are there."""
        entries = self._file.SEAMS
        assert sorted(self._checks) == sorted(entry.name for entry in entries)

        @pytest.mark.parametrize("entry", entries, ids=lambda entry: entry.name.replace(" ", "-"))
        def test(entry: Seam, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
            assert (ROOT / entry.file).exists()
            self._checks[entry.name](monkeypatch, tmp_path)

        return test
