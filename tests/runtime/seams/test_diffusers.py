"""diffusers' private parts are there."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    CogView4Transformer2DModel,
    Lumina2Transformer2DModel,
    StableDiffusionPipeline,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.kolors import text_encoder

from hfjax_app.runtime.seams import diffusers as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)
Z_AXES = {"axes_dims": [4, 6, 6], "axes_lens": [512, 64, 64]}
LUMINA_AXES = {
    "num_attention_heads": 2,
    "num_kv_heads": 1,
    "multiple_of": 16,
    "axes_dim_rope": (4, 6, 6),
    "axes_lens": (300, 64, 64),
}


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


@check("parts that may be missing")
def _needed_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.needed_parts(StableDiffusionPipeline) == ["vae", "text_encoder", "tokenizer", "unet", "scheduler"]


@check("old names in checkpoints")
def _old_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = {"block_out_channels": (4,), "norm_num_groups": 1, "down_block_types": ("DownEncoderBlock2D",)}
    model = AutoencoderKL(**sizes, up_block_types=("UpDecoderBlock2D",))
    values = OrderedDict({"encoder.mid_block.attentions.0.query.weight": 1})
    seam.rename_old_keys(model, values)
    assert [*values] == ["encoder.mid_block.attentions.0.to_q.weight"]


@check("lengths of prompts")
def _lengths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A prompt of 40 tokens that is padded to 96 gives what it gives alone."""
    torch.manual_seed(0)
    prompt, time, nothing = torch.randn(40, 8), torch.tensor([0.5]), torch.full((56, 8), torch.nan)
    z_image = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=8, **Z_AXES
    ).eval()
    lumina = Lumina2Transformer2DModel(
        in_channels=4, hidden_size=32, num_layers=1, num_refiner_layers=1, cap_feat_dim=8, **LUMINA_AXES
    ).eval()
    with torch.no_grad():
        picture = torch.randn(4, 1, 8, 8)
        want = z_image([picture], time, [prompt], return_dict=False)[0][0]
        got = seam.with_lengths_as_data(z_image)([picture], time, [torch.cat([prompt, nothing])], return_dict=False)[0]
        torch.testing.assert_close(got[0], want, rtol=0, atol=1e-5)
        mask = torch.arange(96)[None] < 40
        rows = torch.cat([prompt, torch.zeros(56, 8)])[None], mask
        want = lumina(picture[None, :, 0], time, *rows, return_dict=False)[0]
        got = seam.with_lengths_as_data(lumina)(picture[None, :, 0], time, *rows, return_dict=False)[0]
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
        cog_view = CogView4Transformer2DModel(
            in_channels=4, num_layers=2, num_attention_heads=2, text_embed_dim=8, time_embed_dim=8, condition_dim=4
        ).eval()
        sizes = (time, *torch.ones(3, 1, 2))
        want = cog_view(picture[None, :, 0], prompt[None], *sizes, return_dict=False)[0]
        padded = torch.cat([prompt, nothing])[None]
        got = seam.with_lengths_as_data(cog_view)(picture[None, :, 0], padded, *sizes, return_dict=False)[0]
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert seam.pads_prompts(z_image)
    assert seam.pads_prompts(cog_view)
    assert not seam.pads_prompts(lumina)


@check("scripted functions")
def _scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text_encoder, "apply_rotary_pos_emb", text_encoder.apply_rotary_pos_emb)  # to put it back
    config = text_encoder.ChatGLMConfig(
        num_layers=0, padded_vocab_size=4, hidden_size=8, ffn_hidden_size=8, original_rope=True
    )
    scripted = text_encoder.apply_rotary_pos_emb
    seam.with_lengths_as_data(text_encoder.ChatGLMModel(config))
    assert not isinstance(text_encoder.apply_rotary_pos_emb, torch.jit.ScriptFunction)
    arguments = torch.randn(3, 1, 2, 8), torch.randn(3, 1, 2, 2)
    torch.testing.assert_close(text_encoder.apply_rotary_pos_emb(*arguments), scripted(*arguments))


@check("schedulers of a family")
def _family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert {"DDIMScheduler", "EulerDiscreteScheduler"} <= seam.schedulers_of_stable_diffusion()


test_it_is_there_and_still_needed = check.test()
