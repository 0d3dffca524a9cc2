"""Convolution kernels in XLA's order: the results of torch, and no transposition inside the program."""

import re

import jax
import numpy as np
import pytest
import torch

from hfjax_app.images.networks import without_weights
from hfjax_app.runtime.cpu.weights import ConvLayout
from hfjax_app.runtime.held_weights import device_weights, shapes
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import pure_function


@pytest.mark.parametrize("in_order", [True, False])
def test_no_kernel_is_transposed_in_a_program(in_order: bool) -> None:
    """In torch's order each kernel is transposed at every call."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(24, 40, 3, stride=2, bias=False)
    )
    transforms = Transforms(ConvLayout(network)) if in_order else Transforms()
    weights, planned = device_weights(network, transforms), shapes(network, transforms)
    assert weights["0.weight"].shape == ((3, 3, 3, 24) if in_order else (24, 3, 3, 3))
    assert {name: array.shape for name, array in weights.items()} == {name: s.shape for name, s in planned.items()}
    image = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(np.float32)
    adapted = without_weights(network)
    transforms.adapt(adapted)
    program = jax.jit(pure_function(adapted)).lower(weights, image).compile()
    want = network(torch.from_numpy(image)).detach().numpy()
    np.testing.assert_allclose(np.asarray(program(weights, image)), want, atol=1e-5)
    moved = re.findall(r"f32\[3,3,(?:3,24|24,40)\]\S* (?:transpose|copy)\(", program.as_text())
    assert (not moved) == in_order
