"""What a training that was stopped goes on from: one file, replaced as a whole."""

from pathlib import Path

import torch


class Checkpoint:
    """The state of a training in a file: tensors, numbers, strings, lists and dicts of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, **state: object) -> None:
        """Replaces what is in the file."""
        part = self.path.with_name(self.path.name + ".part")
        torch.save(state, part)
        part.replace(self.path)

    def load(self) -> dict | None:
        """What was saved last; None where nothing was."""
        return torch.load(self.path, weights_only=True) if self.path.exists() else None

    def remove(self) -> None:
        """Ends what the state was kept for."""
        self.path.unlink(missing_ok=True)
