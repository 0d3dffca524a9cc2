"""Blocks that are equal but for their weights are traced once, and compute what torch computes."""

from typing import ClassVar

import jax
import numpy as np
import torch

from hfjax_app.images.networks import fresh, without_weights
from hfjax_app.runtime.equal_blocks import EqualBlocks
from hfjax_app.runtime.module import pure_function, weights_of

WIDTH = 8


class Block(torch.nn.Module):
    """Notes each run of its code, and multiplies by an option that is no weight."""

    runs: ClassVar[list[float]] = []

    def __init__(self, factor: float):
        super().__init__()
        self.linear, self.factor = torch.nn.Linear(WIDTH, WIDTH), factor

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor | None = None, twice: bool = False) -> torch.Tensor:
        self.runs.append(self.factor)
        x = x + self.factor * torch.tanh(self.linear(x))
        x = x if shift is None else x + shift
        return 2 * x if twice else x


class Stack(torch.nn.Module):
    def __init__(self, factors: list[float]):
        super().__init__()
        self.blocks = torch.nn.ModuleList(map(Block, factors))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x, shift=shift, twice=i == 1)
        return x


def adapted(stack: Stack) -> Stack:
    other = without_weights(stack)
    EqualBlocks().adapt(other)
    return other


def test_each_structure_and_option_is_traced_once() -> None:
    torch.manual_seed(0)
    stack = Stack([1.0, 1.0, 1.0, 0.5, 1.0])
    x, shift = torch.randn(2, WIDTH), torch.randn(WIDTH)
    want = stack(x, shift).detach().numpy()
    network = adapted(stack)
    Block.runs.clear()
    for _ in range(2):  # a new copy for each trace, as for programs: it must not see tracers of the one before
        got = jax.jit(pure_function(fresh(network), lambda m, *args: m(*args)))(
            weights_of(stack), x.numpy(), shift.numpy()
        )
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert sorted(Block.runs) == 2 * [0.5] + 4 * [1.0], "the block alone, and of the equal ones each `twice`"


def test_blocks_with_hooks_are_heard() -> None:
    """transformers reads the states between layers by hooks around them, and attention inside them."""
    stack, heard = Stack([1.0, 1.0, 1.0]), list[str]()
    x, shift = torch.randn(2, WIDTH), torch.randn(WIDTH)
    want = stack(x, shift).detach().numpy()
    network = adapted(stack)
    network.blocks[1].register_forward_hook(lambda *_: heard.append("around"))
    network.blocks[2].get_submodule("linear").register_forward_hook(lambda *_: heard.append("inside"))
    got = jax.jit(pure_function(network, lambda m, *args: m(*args)))(weights_of(stack), x.numpy(), shift.numpy())
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert heard == ["around", "inside"]
