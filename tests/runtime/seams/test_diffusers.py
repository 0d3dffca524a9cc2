"""diffusers' private parts are there."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
from diffusers import AutoencoderKL, StableDiffusionPipeline

from hfjax_app.runtime.seams import diffusers as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)


@check("kinds of single files")
def _single_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shape = SimpleNamespace(shape=(4, 320, 3, 3))
    kind = seam.kind_of_file({"model.diffusion_model.out.2.weight": shape})
    assert kind == "v1"


@check("parts with a LoRA")
def _lora_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert StableDiffusionPipeline._lora_loadable_modules == ["unet", "text_encoder"]
    pipeline = SimpleNamespace(_lora_loadable_modules=["unet", "text_encoder"], unet=1, text_encoder=None)
    assert seam.parts_with_lora(pipeline) == ["unet"]


@check("old names in checkpoints")
def _old_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = {"block_out_channels": (4,), "norm_num_groups": 1, "down_block_types": ("DownEncoderBlock2D",)}
    model = AutoencoderKL(**sizes, up_block_types=("UpDecoderBlock2D",))
    values = OrderedDict({"encoder.mid_block.attentions.0.query.weight": 1})
    seam.rename_old_keys(model, values)
    assert [*values] == ["encoder.mid_block.attentions.0.to_q.weight"]


@check("schedulers of a family")
def _family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert {"DDIMScheduler", "EulerDiscreteScheduler"} <= seam.schedulers_of_stable_diffusion()


test_it_is_there_and_still_needed = check.test()
