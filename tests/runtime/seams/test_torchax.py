"""torchax's private parts are there, and what is replaced is still needed."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from torch.nn import functional
from torchax import interop
from torchax.tensor import Environment, OperatorNotFound
from transformers.utils.import_utils import torch_compilable_check

from hfjax_app.runtime.host_tensors import HostTensors
from hfjax_app.runtime.seams import torchax as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)


def upstream(monkeypatch: pytest.MonkeyPatch, function: Callable[..., torch.Tensor]) -> Callable[..., jax.Array]:
    """A function of tensors as a function of arrays, by unpatched torchax."""
    monkeypatch.setattr(torchax, "_env", Environment())

    def run(*arrays: jax.Array) -> jax.Array:
        with torchax.default_env(), torch.no_grad():
            return interop.jax_view(function(*interop.torch_view(arrays)))

    return run


@check("upsampling")
def _upsampling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda image: functional.interpolate(image, scale_factor=2.0, mode="nearest"))
    with pytest.warns(UserWarning, match="int64"):
        jax.make_jaxpr(run)(jnp.ones((1, 1, 2, 2)))


@check("bilinear scaling")
def _scaling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"size": (3, 5), "mode": "bilinear", "antialias": True}
    run = upstream(monkeypatch, lambda image: functional.interpolate(image, **options))
    with pytest.raises(TypeError, match="not callable"):
        jax.make_jaxpr(run)(jnp.ones((1, 1, 2, 2)))


@check("checks of values")
def _checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def checked(numbers: torch.Tensor) -> torch.Tensor:
        torch_compilable_check(numbers.sum() == 1, "one")
        return numbers

    def readable(numbers: torch.Tensor) -> torch.Tensor:
        with HostTensors():
            return checked(numbers)

    with pytest.raises(OperatorNotFound, match="_is_all_true"):
        jax.make_jaxpr(upstream(monkeypatch, checked))(jnp.ones(3))
    jax.make_jaxpr(upstream(monkeypatch, readable))(jnp.ones(3))


@check("operators on the host")
def _on_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def classes() -> torch.Tensor:
        return functional.one_hot(torch.tensor([2, 0]), 3)

    with torchax.default_env():
        assert type(seam.on_host(classes)) is torch.Tensor
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            with pytest.raises(AssertionError, match="mixed math"):
                classes()


@check("grouped transposed convolution")
def _convolution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    image, kernel = (torch.randn(shape, generator=generator) for shape in ((1, 4, 3, 3), (4, 4, 3, 3)))
    run = upstream(monkeypatch, lambda *tensors: functional.conv_transpose2d(*tensors, groups=2))
    want = functional.conv_transpose2d(image, kernel, groups=2).numpy()
    assert not np.allclose(run(jnp.asarray(image.numpy()), jnp.asarray(kernel.numpy())), want, atol=1e-2)


@check("gelu")
def _gelu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "erfc" in str(jax.make_jaxpr(upstream(monkeypatch, functional.gelu))(jnp.ones(3)))


def half_precision_off_by(
    monkeypatch: pytest.MonkeyPatch, norm: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> float:
    """The largest difference from torch; numbers up to 4 in bfloat16 are 0.016 apart."""
    x = (50 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        got = upstream(monkeypatch, norm)(jnp.asarray(x.float().numpy(), "bfloat16"))
    return np.abs(np.asarray(got, np.float32) - norm(x).float().numpy()).max()


@check("group norm")
def _group_norm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert half_precision_off_by(monkeypatch, lambda x: functional.group_norm(x, 4), (2, 8, 5, 3)) > 0.05


@check("layer norm")
def _layer_norm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert half_precision_off_by(monkeypatch, lambda x: functional.layer_norm(x, (16,)), (2, 5, 16)) > 0.05


@check("attention")
def _attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda x, mask: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    assert jnp.isnan(run(jnp.ones((1, 1, 2, 4)), jnp.asarray([[True, False], [False, False]]))).any()


@check("grouped products")
def _grouped_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda rows, matrices, ends: functional.grouped_mm(rows, matrices, offs=ends))
    with pytest.raises(OperatorNotFound, match="_grouped_mm"):
        run(jnp.ones((4, 6)), jnp.ones((2, 6, 5)), jnp.asarray([2, 4], jnp.int32))


@check("pairs")
def _pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda x: torch.stack(x.unflatten(-1, (-1, 2)).unbind(-1), -1))
    shape = jax.ShapeDtypeStruct((64, 64, 64), jnp.float32)
    assert "dot_general" not in jax.jit(run).trace(shape).lower(lowering_platforms=("tpu",)).as_text()


@check("linear")
def _linear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, functional.linear)
    called: list[bool] = []
    torchax.default_env().override_op_definition(functional.linear, lambda x, weight: called.append(True) or x)
    run(jnp.ones((2, 2)), jnp.ones((2, 2)))
    assert called


@check("conversions")
def _conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    array = seam.array_of(torch.arange(3, dtype=torch.int64))
    assert (array.dtype, array.tolist()) == (jnp.int32, [0, 1, 2])
    assert seam.jax_dtype(torch.bfloat16) == jnp.bfloat16
    assert seam.torch_dtype("bfloat16") is torch.bfloat16


@check("upstream's lowerings")
def _lowerings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image, kernel = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, 3, 3))
    options = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert seam.upstream(torch.ops.aten.convolution, image, kernel, None, *options).tolist() == [[[[9.0]]]]


@check("assignment")
def _assignment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "return jax_array.at[self.slices].set(new_value)" in inspect.getsource(torchax.view)
    assert "self._elem = self._elem.at[key].set(val)" in inspect.getsource(torchax.tensor)

    def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        def rotated(states: jax.Array) -> jax.Array:
            first, second = jnp.split(states[:, :, 16:], 2, axis=-1)
            return states.at[:, :, 16:].set(states[:, :, 16:] * 2 + jnp.concatenate([-second, first], axis=-1))

        return jax.nn.softmax(rotated(query) @ rotated(key).swapaxes(-1, -2)) @ value

    states = jax.random.normal(jax.random.key(0), (3, 1, 2, 80, 16))
    assert jnp.abs(jax.jit(attention)(*states) - attention(*states)).max() > 0.1, "XLA updates in place as it should"


@check("type_as")
def _type_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "self._elem = self._elem.astype(other._elem.dtype)" in inspect.getsource(torchax.tensor)


test_it_is_there_and_still_needed = check.test()
