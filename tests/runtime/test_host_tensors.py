"""Plain tensors beside traced ones: Python reads them, and results are torch's."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional

from hfjax_app.runtime.host_tensors import HostTensors
from hfjax_app.runtime.module import pure_function

GRID = torch.tensor([[2, 3]])


def split(x: torch.Tensor) -> torch.Tensor:
    """Lengths become Python ints."""
    rows, columns = GRID[0]
    lengths = [*GRID[:, 0].tolist(), 4]
    return torch.cat(torch.split(x, lengths))[: rows * columns].reshape(rows, columns, -1)


def gathered(x: torch.Tensor) -> torch.Tensor:
    """An index and its inverse, computed without traced values."""
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    return x[order][torch.argsort(order)] * order[:, None]


def masked(x: torch.Tensor) -> torch.Tensor:
    """An index of booleans has a length that is known on the host."""
    mask = torch.arange(6) % 2 == 0
    return x[mask] - x[~mask, :]


def classes(x: torch.Tensor) -> torch.Tensor:
    """Parts of one operator stay on the host."""
    return functional.one_hot(GRID[0], 6).float() @ x


def sizes(x: torch.Tensor) -> torch.Tensor:
    """A tensor made of numbers is readable, whatever device it is asked for."""
    [rows] = torch.as_tensor(GRID, device=x.device).prod(-1).tolist()
    return x[:rows] / torch.tensor(2.0)


@pytest.mark.parametrize("function", [split, gathered, masked, classes, sizes])
def test_results_are_those_of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)

    def seen(_: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        with HostTensors():
            return function(x)

    got = jax.jit(pure_function(torch.nn.Identity(), seen))({}, x)
    np.testing.assert_allclose(np.asarray(got), function(torch.tensor(x)).numpy(), rtol=1e-6)
