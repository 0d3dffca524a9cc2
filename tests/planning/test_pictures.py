"""Plans of image models of today by arithmetic, from configs alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diffusers import Flux2Transformer2DModel, FluxTransformer2DModel, QwenImageTransformer2DModel
from jax.sharding import AbstractMesh
from transformers import Qwen3Config

from hfjax_app.__main__ import main
from hfjax_app.images.checkpoint import read_empty
from hfjax_app.images.networks import Storage, network_bytes
from hfjax_app.runtime.mesh import AXIS, ROWS, SplitByName
from hfjax_app.runtime.topology import _NO_TPU

from .picture_configs import MODELS, save_configs

GIB = 1 << 30
V5E = "v5e:1x1"


@pytest.fixture(autouse=True)
def same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command chooses jax's devices by variables, which are set back."""
    for name in ("JAX_PLATFORMS", "JAX_ENABLE_COMPILATION_CACHE", "XLA_FLAGS", "LIBTPU_INIT_ARGS", *_NO_TPU):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """`plan(model, *options)`: the quick plan's exit status, report and error."""

    def planned(model: str, *options: str) -> tuple[int, dict[str, Any], str]:
        save_configs(model, tmp_path / model)
        status = main(["plan", "--quick", "--json", "--image-model", str(tmp_path / model), *options])
        out, log = capsys.readouterr()
        return status, json.loads(out), log.splitlines()[-1] if log else ""

    return planned


@pytest.mark.slow
def test_z_image_fits_one_small_chip_with_int8(plan: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    status, found, log = plan("Z-Image-Turbo", "--topology", V5E)
    assert (status, found["fits"]) == (1, False)
    assert log.endswith(
        "does not fit v5e:1x1; would fit: image_quantize = int8 or image_text_encoders = host or topology v6e:1x1"
    )
    rows = {(row["topology"], row["quantize"]): row for row in found["picture_topologies"]}
    assert rows[V5E, "none"]["parts"]["transformer"] == pytest.approx(2 * 6_154_908_736, rel=1e-3)
    assert [rows[V5E, way]["fits"] for way in ("none", "int8")] == [False, True]
    assert rows[V5E, "int8"]["held"] < 11 * GIB
    # a step's products, counted by hand: of its layers for 4,096 tokens of the picture and 512 of the prompt
    layer = 4 * 3840**2 + 3 * 3840 * 10240
    tokens = 32 * 4608 + 2 * 4096 + 2 * 512 - 2 * 4608
    attention = 4 * 3840 * (30 * 4608**2 + 2 * 4096**2 + 2 * 512**2)
    assert rows[V5E, "int8"]["seconds"] == pytest.approx(9 * (2 * layer * tokens + attention) / 197e12, rel=0.01)
    assert rows["v5e:2x2", "none"]["splits"] is True
    assert rows["v5e:2x2", "none"]["seconds"] == pytest.approx(rows[V5E, "none"]["seconds"] / 4, rel=0.01)
    status, found, _ = plan("Z-Image-Turbo", "--topology", V5E, "--image-quantize", "int8")
    assert (status, found["fits"]) == (0, True)
    assert found["preflight"]["image"]["dtype"] == "int8 and bfloat16"
    status, found, _ = plan("Z-Image-Turbo", "--topology", V5E, "--image-text-encoders", "host")
    assert (status, found["fits"]) == (0, True)
    row = next(row for row in found["picture_topologies"] if (row["topology"], row["quantize"]) == (V5E, "none"))
    encoder = 2 * 4_022_468_096
    assert row["parts"]["text_encoder"] == 2 * 151_936 * 2560, "its embedding goes through the chip as a whole"
    assert row["prompt_seconds"] == pytest.approx(encoder / 16e9, rel=1e-3)
    assert found["preflight"]["image"]["bytes"] > encoder


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[pytest.mark.slow] * (name != "Qwen-Image")) for name in MODELS]
)
def test_weights_on_each_chip_fall_with_their_number(model: str, tmp_path: Path) -> None:
    """Whole are the autoencoder and, in all, less than a thousandth of the others."""
    save_configs(model, tmp_path)
    pipeline = read_empty(tmp_path)
    for quantize in ("none", "int8"):
        storage = Storage(dtype="bfloat16", quantize=quantize)
        alone = network_bytes(pipeline, storage)
        for chips in (4, 8):
            parts = network_bytes(pipeline, storage, chips)
            assert parts["vae"] == alone["vae"]
            for name in alone.keys() - {"vae"}:
                assert parts[name] < alone[name] * (1 / chips + 1e-2), (name, quantize, chips)


def test_rows_of_the_survey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_configs("stable-diffusion-xl-base-1.0", tmp_path / "sdxl")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model_index.json").write_text('{"_class_name": "Nothing"}')
    assert main(["plan", "--configs", str(tmp_path)]) == 0
    _head, _rule, broken, as_it_is, int8 = capsys.readouterr().out.splitlines()
    assert broken.startswith("| broken | model")
    assert "'Nothing' is not one of diffusers' pipelines" in broken
    assert as_it_is.startswith("| sdxl, 50 steps of 1024 x 1024 | bfloat16 | 4.8 | 1.5 | 0.2 | 13.")
    assert int8.startswith("| sdxl, 50 steps of 1024 x 1024 | int8 | 2.")


@pytest.mark.parametrize("kind", [FluxTransformer2DModel, Flux2Transformer2DModel, QwenImageTransformer2DModel])
def test_the_rule_is_that_of_the_plans_of_diffusers(kind: Any) -> None:
    """Where a class has a plan of its own, each layer that it names is split along the same axis."""
    named = {name: way if isinstance(way, str) else type(way).__name__ for name, way in kind._tp_plan.items()}
    check_axes(named)


def test_the_rule_is_that_of_the_plans_of_transformers() -> None:
    named = {name: way for name, way in Qwen3Config().base_model_tp_plan.items() if way.endswith("wise")}
    check_axes(named)


def check_axes(plan: dict[str, str]) -> None:
    rule = SplitByName(AbstractMesh((1, 8), (ROWS, AXIS)))
    assert len(plan) > 6
    for layer, way in plan.items():
        axis = 1 if "row" in way.lower() else 0
        assert rule(layer.replace("*", "0") + ".weight", (64, 64)).spec.index(AXIS) == axis, layer
