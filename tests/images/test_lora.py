"""LoRA merged into the weights: the pictures are those of diffusers with the adapters attached."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.lora import Lora, merge, revision_with

LATENTS = np.random.default_rng(1).standard_normal((1, 4, 16, 16), np.float32)


def made(make_pipeline: Callable[..., Any], folder: Path, seed: int, **options: Any) -> Path:
    """A LoRA with random weights for the denoiser and the text encoder, as diffusers saves it."""
    torch.manual_seed(seed)
    pipeline = make_pipeline(**options)
    layers = {}
    for name in ("unet", "text_encoder"):
        targets = ["to_q", "to_v"] if name == "unet" else ["q_proj", "out_proj"]
        part = getattr(pipeline, name)
        part.add_adapter(LoraConfig(r=2, lora_alpha=2, target_modules=targets, init_lora_weights=False))
        layers[f"{name}_lora_layers"] = get_peft_model_state_dict(part)
    pipeline.save_lora_weights(folder, **layers)
    return folder


@pytest.fixture(scope="module")
def loras(make_pipeline: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [made(make_pipeline, tmp_path_factory.mktemp(f"lora{seed}"), seed) for seed in (1, 2)]


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")  # of diffusers' two adapters
def test_two_loras_with_weights_equal_diffusers(
    pipeline: StableDiffusionPipeline, folder: Path, loras: list[Path], generator: ImageGenerator
) -> None:
    given = [Lora(source=str(loras[0]), weight=0.7), Lora(source=str(next(loras[1].glob("*"))), weight=-0.4)]
    merged = ImageGenerator.from_pretrained(folder, loras=given)
    options: dict[str, Any] = {"guidance_scale": 2.0, "prompt": "red dot"}
    *_, got = merged.generate(ImageRequest(steps=3, latents=LATENTS, **options))
    *_, without = generator.generate(ImageRequest(steps=3, latents=LATENTS, **options))
    attached = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    attached.set_progress_bar_config(disable=True)
    for number, path in enumerate(loras):
        attached.load_lora_weights(path, adapter_name=f"a{number}")
    attached.set_adapters(["a0", "a1"], [0.7, -0.4])
    want = attached(num_inference_steps=3, latents=torch.tensor(LATENTS), output_type="np", **options).images[0]
    np.testing.assert_allclose(got.pictures[0].pixels, want, atol=1e-3)
    assert np.abs(without.pictures[0].pixels - want).max() > 0.01, "the LoRAs must matter"
    assert merged.facts.revision != generator.facts.revision
    assert merged.facts.revision == revision_with(generator.facts.revision or "", given)
    assert merged.facts.name.endswith("+ pytorch_lora_weights (-0.4)")


def test_what_does_not_fit_is_refused(make_pipeline: Callable[..., Any], loras: list[Path], tmp_path: Path) -> None:
    """diffusers logs what it passes over, and draws without it."""
    state = load_file(next(loras[0].glob("*")))

    def refusal(changed: dict[str, torch.Tensor]) -> str:
        file = tmp_path / "style.safetensors"
        save_file(changed, file)
        with pytest.raises(ModelUnavailable) as caught:
            merge(make_pipeline(), [Lora(source=str(file))])
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "doesn't fit this StableDiffusionPipeline" in refusal({f"{key}x": value for key, value in state.items()})
    odd = {key.replace("down_blocks.1", "down_blocks.7"): value for key, value in state.items()}
    assert "layers are in the model; take one that was made for this model" in refusal(odd)
    wide = {key: torch.cat([value, value], -1) if "lora_A" in key else value for key, value in state.items()}
    assert "doesn't fit this StableDiffusionPipeline" in refusal(wide)
    assert "is a LoHa, which can't be merged" in refusal({"lora_unet_x.hada_w1_a": torch.zeros(2)})
    with pytest.raises(ModelUnavailable, match="has 0 safetensors files"):
        Lora(source=str(tmp_path / "..")).file()
    with pytest.raises(ModelUnavailable, match="LoRA: model 'owner/none' is no folder here"):
        Lora(source="owner/none").file()
