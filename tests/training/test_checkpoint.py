"""A training that was stopped resumes to the same weights."""

from pathlib import Path

import pytest
import torch

from training.checkpoint import Checkpoint


class Stopped(Exception):
    pass


def trained(path: Path, steps: int, stop_after: int | None = None) -> list[torch.Tensor]:
    """Weights after a few steps of AdamW on random data; both optimizer and generator have state."""
    torch.manual_seed(0)
    model, generator, begun = torch.nn.Linear(4, 2), torch.Generator().manual_seed(1), 0
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    checkpoint = Checkpoint(path)
    if kept := checkpoint.load():
        begun = kept["step"]
        generator.set_state(kept["generator"])
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    for step in range(begun, steps):
        model(torch.randn((8, 4), generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoint.save(
            step=step + 1,
            generator=generator.get_state(),
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
        )
        if step + 1 == stop_after:
            raise Stopped
    checkpoint.remove()
    return [parameter.detach() for parameter in model.parameters()]


def test_a_stopped_training_ends_at_the_same_weights(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole.pt", 6)
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped.pt", 6, stop_after=3)
    assert all(map(torch.equal, trained(tmp_path / "stopped.pt", 6), whole))
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"
