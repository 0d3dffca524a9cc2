"""Linear layers that read the same input: which layers, and one product with the same results."""

import re

import jax
import numpy as np
import torch

from hfjax_app.chat.model.decoder import observed
from hfjax_app.runtime.cpu.weights import FusedLinear
from hfjax_app.runtime.held_weights import device_weights, shapes
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import pure_function, weights_of

WIDTH = 24


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 8, bias=False)
        self.value, self.out = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.query(x) + torch.cat([self.key(x), self.value(x)] * 2, -1)[..., :WIDTH]
        return self.out(mixed.tanh())


class Block(torch.nn.Module):
    """Layers that read the same input, and similar ones that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.gate, self.up = torch.nn.Linear(WIDTH, 40), torch.nn.Linear(WIDTH, 40)
        self.tied, self.twice = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.table = torch.nn.Embedding(WIDTH, WIDTH)
        self.tied.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.attention(x)
        both = self.gate(y) * self.up(y)
        return both[..., :WIDTH] + self.tied(y) + self.twice(y) + self.twice(y.cos())


GROUPS = [("attention.query", "attention.key", "attention.value"), ("gate", "up")]


def observe(model: torch.nn.Module) -> list[tuple[str, ...]]:
    with observed(model) as groups:
        model(torch.zeros(1, WIDTH, device=next(model.parameters()).device))
    return groups


def test_layers_of_one_parent_that_read_one_tensor_are_a_group() -> None:
    """Not a layer that shares its weight with an embedding, nor one that is called twice; no hooks remain."""
    model = Block()
    assert observe(model) == GROUPS
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_with_a_keyword_input_is_in_no_group() -> None:
    model = Block()
    model.gate.forward = lambda input: torch.nn.functional.linear(input, model.gate.weight)
    with observed(model) as groups:
        x = torch.zeros(1, WIDTH)
        model.gate(input=x), model.up(x), model.tied(x)
    assert groups == []


def test_a_group_is_one_product_with_the_same_results() -> None:
    torch.manual_seed(0)
    model, x = Block(), np.random.default_rng(0).standard_normal((3, WIDTH), dtype=np.float32)
    want = model(torch.from_numpy(x)).detach().numpy()
    size = sum(weight.nbytes for weight in weights_of(model).values())
    bare = Block().to("meta")
    bare.tied.weight = bare.table.weight
    fused = Transforms(FusedLinear())
    fused.adapt(bare, observe(bare))
    weights = device_weights(model, fused)
    assert {name: tuple(parameter.shape) for name, parameter in bare.named_parameters()} == {
        name: weight.shape for name, weight in weights.items()
    }
    assert sum(weight.nbytes for weight in weights.values()) == size
    program = jax.jit(pure_function(bare)).lower(weights, x).compile()
    np.testing.assert_allclose(program(weights, x), want, rtol=1e-5, atol=1e-5)
    # Query, key and value; out; gate and up; tied; twice two times.
    text = program.as_text()
    assert len(re.findall(r"calls=(%\S+), .*reduce", text[text.index("ENTRY") :])) == 6


def test_planned_shapes_equal_fused_weights() -> None:
    model, bare = Block(), Block().to("meta")
    bare.tied.weight = bare.table.weight
    fused = Transforms(FusedLinear())
    fused.adapt(Block(), GROUPS)
    made = {name: (weight.shape, weight.dtype) for name, weight in device_weights(model, fused).items()}
    assert {name: (shape.shape, shape.dtype) for name, shape in shapes(bare, fused).items()} == made
