"""Kernels of convolutions in XLA's order: the results of torch, and nothing rearranged inside the program."""

import re

import jax
import numpy as np
import pytest
import torch

from hfjax_app.runtime.checkpoints.safetensors_reader import shapes, weights_for
from hfjax_app.runtime.cpu.conv_layout import as_torch, kernels_of, stored
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.programs import Programs


@pytest.mark.parametrize("in_order", [True, False])
def test_no_kernel_is_rearranged_in_a_program(in_order: bool) -> None:
    """Without the right order, each kernel is transposed at every call."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(24, 40, 3, stride=2, bias=False)
    )
    kernels = kernels_of(network, Programs()) if in_order else {}
    assert kernels == ({"0.weight": False, "2.weight": False} if in_order else {})
    weights = weights_for(Programs(), network, kernels=kernels)
    planned = stored(shapes(network), kernels)
    assert {name: array.shape for name, array in weights.items()} == {name: s.shape for name, s in planned.items()}
    image = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(np.float32)
    forward = pure_function(network)
    program = jax.jit(lambda weights, image: forward(as_torch(weights, kernels), image)).lower(weights, image).compile()
    want = network(torch.from_numpy(image)).detach().numpy()
    np.testing.assert_allclose(np.asarray(program(weights, image)), want, atol=1e-5)
    moved = re.findall(r"f32\[3,3,(?:3,24|24,40)\]\S* (?:transpose|copy)\(", program.as_text())
    assert (not moved) == in_order


@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
def test_many_channels_are_convolved_in_winograds_way(size: tuple[int, int]) -> None:
    """Only plain 3x3 layers: 16 products of matrices, and no convolution is left of them."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(256, 288, 3, padding=1),
        torch.nn.Conv2d(288, 256, 3, padding=1, bias=False),
        torch.nn.Conv2d(256, 256, 3, padding=1, stride=2),
        torch.nn.Conv2d(256, 4, 3, padding=1),
    )
    assert not any(kernels_of(network, Programs()).values())
    kernels = kernels_of(network, Programs(), transform=True)
    assert kernels == {"0.weight": True, "1.weight": True, "2.weight": False, "3.weight": False}
    weights = weights_for(Programs(), network, kernels=kernels)
    assert weights["0.weight"].shape == stored(shapes(network), kernels)["0.weight"].shape == (16, 256, 288)
    image = np.random.default_rng(0).standard_normal((2, 256, *size)).astype(np.float32)
    forward = pure_function(network)
    program = jax.jit(lambda weights, image: forward(as_torch(weights, kernels), image)).lower(weights, image)
    assert program.as_text().count("stablehlo.convolution") == 2
    want = network(torch.from_numpy(image)).detach().numpy()
    np.testing.assert_allclose(np.asarray(program.compile()(weights, image)), want, atol=1e-5)
