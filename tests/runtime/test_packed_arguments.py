"""1-D weights in one array: fewer arguments, the same numbers to the last bit, and the same shapes in plans."""

import jax
import numpy as np
import torch

from hfjax_app.runtime.held_weights import PackedArguments, shapes
from hfjax_app.runtime.model_transform import NONE
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.programs import Programs


def test_a_network_computes_the_same_from_packed_arguments() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.GroupNorm(4, 16),
        torch.nn.BatchNorm2d(16),  # its number of batches is an integer scalar
        torch.nn.SiLU(),
        torch.nn.Conv2d(16, 8, 1, bias=False),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 5),
    ).eval()
    network.register_buffer("table", torch.arange(7, dtype=torch.int32))  # another dtype
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    weights = weights_of(network)
    arguments = PackedArguments(weights, packs=True)
    fewer, vectors = arguments.weights, sum(weight.ndim == 1 for weight in weights.values())
    assert len(fewer) == len(weights) - vectors + 2
    back = jax.jit(arguments.unpack)(fewer)
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], weight) for name, weight in weights.items())
    image = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)
    forward = pure_function(network)
    plain = Programs().compile("plain", forward, weights, image)
    few = Programs().compile("few", lambda fewer, image: forward(arguments.unpack(fewer), image), fewer, image)
    np.testing.assert_array_equal(few(fewer, image), plain(weights, image))
    planned = PackedArguments(shapes(network, NONE), packs=True).weights
    assert planned.keys() == fewer.keys()
    assert all(planned[name].shape == array.shape for name, array in fewer.items())


def test_without_1_d_weights_nothing_changes() -> None:
    weights = {"matrix": np.zeros((2, 3), np.float32)}
    arguments = PackedArguments(weights, packs=True)
    assert arguments.weights == arguments.unpack(weights) == weights


def test_nothing_is_packed_if_packs_is_false() -> None:
    weights = {"vector": np.zeros(3, np.float32)}
    assert PackedArguments(weights, packs=False).weights == weights
