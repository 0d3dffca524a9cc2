"""Our lowerings against torch itself."""

import jax
import numpy as np
import pytest
import torch

from hfjax_app.runtime.module import pure_function


@pytest.mark.parametrize("size", [(8, 10), (4, 15), (7, 6), (3, 4)])
def test_upsample_nearest_equals_torch(size: tuple[int, int]) -> None:
    """Whole and broken factors, up and down; a warning about int64 would fail the test (filterwarnings = error)."""
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    upsample = torch.nn.Upsample(size=size)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


def test_upsample_nearest_by_a_factor_equals_torch() -> None:
    """The overload without a size."""
    image = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    upsample = torch.nn.Upsample(scale_factor=2.0)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())
