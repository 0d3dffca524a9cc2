"""LoRA of the families of today, in the names of diffusers, PEFT and kohya's scripts, against diffusers' own loader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import save_file

from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.checkpoint import denoiser_name
from hfjax_app.images.generator import Origin
from hfjax_app.images.interface import Recommended
from hfjax_app.images.lora import Lora, read_loras

from .families import family
from .test_families import OTHER, SEED, STEPS, torch_pixels

TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "to_qkv_mlp_proj", "attention.to_out.0"]
TARGETS += ["to_query", "to_value", "attention.out_layer"]  # Kandinsky 5's names
OPTIONS: dict[str, Any] = {"prompt": "a red dot", "guidance_scale": 3.0, "width": OTHER[0], "height": OTHER[1]}


def of_diffusers(pipeline: Any, folder: Path) -> Path:
    """As `save_lora_weights` writes it."""
    part = denoiser_name(pipeline)
    network = getattr(pipeline, part)
    network.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS, init_lora_weights=False))
    layers = get_peft_model_state_dict(network)
    network.delete_adapters("default")
    metadata = {"r": 2, "lora_alpha": 4, "target_modules": TARGETS}
    of_part = {f"{part}_lora_layers": layers, f"{part}_lora_adapter_metadata": metadata}
    pipeline.save_lora_weights(folder, safe_serialization=True, **of_part)
    return folder / "pytorch_lora_weights.safetensors"


def of_peft(pipeline: Any, folder: Path) -> Path:
    """As trainers write it that save what PEFT has: the model's own names behind `diffusion_model`."""
    state = {}
    for name, module in pipeline.transformer.named_modules():
        if isinstance(module, torch.nn.Linear) and name.startswith("layers.0.") and "feed_forward" in name:
            state[f"diffusion_model.{name}.lora_A.weight"] = torch.randn(2, module.in_features)
            state[f"diffusion_model.{name}.lora_B.weight"] = torch.randn(module.out_features, 2) / 4
    file = folder / "peft.safetensors"
    save_file(state, file)
    return file


def of_kohya(pipeline: Any, folder: Path) -> Path:
    """As kohya's scripts write it: queries, keys and values are one layer, and the scale is a tensor."""
    width = pipeline.transformer.inner_dim
    state = {}
    for name, wide in (("double_blocks_0_img_attn_qkv", 3 * width), ("double_blocks_0_img_attn_proj", width)):
        state[f"lora_unet_{name}.lora_down.weight"] = torch.randn(2, width)
        state[f"lora_unet_{name}.lora_up.weight"] = torch.randn(wide, 2)
        state[f"lora_unet_{name}.alpha"] = torch.tensor(1.0)
    file = folder / "kohya.safetensors"
    save_file(state, file)
    return file


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("Flux.1 dev", of_kohya),
        pytest.param("Flux.1 dev", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Z-Image", of_peft, marks=pytest.mark.slow),
        pytest.param("Z-Image", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Qwen-Image", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Stable Diffusion 3.5", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Flux.2 klein", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Krea 2", of_diffusers, marks=pytest.mark.slow),
        pytest.param("CogView 4", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Kolors", of_diffusers, marks=pytest.mark.slow),
        pytest.param("Kandinsky 5", of_diffusers, marks=pytest.mark.slow),
    ],
)
def test_loras_of_families_equal_diffusers(
    name: str, make: Callable[[Any, Path], Path], tmp_path: Path, compilations: Callable
) -> None:
    pipeline = family(name)
    file = make(pipeline, tmp_path)
    origin = Origin(
        loras=read_loras(pipeline, [Lora(source=str(file))]),
        recommended=Recommended(size=OTHER, guidance_scale=OPTIONS["guidance_scale"]),
    )
    generator = ImageGenerator(pipeline, origin=origin)
    seen = []
    for loras in ("", f"{file.stem}:0.8"):
        if loras:
            pipeline.load_lora_weights(str(tmp_path), weight_name=file.name, adapter_name="style")
            pipeline.set_adapters(["style"], [0.8])
        with compilations() as compiled:
            *_, step = generator.generate(ImageRequest(**OPTIONS, steps=STEPS, seed=SEED, loras=loras))
        assert compiled == []
        want = torch_pixels(name, pipeline, generator.facts.latents.of(OTHER), OPTIONS)
        np.testing.assert_allclose(step.pictures[0].pixels, want, rtol=0, atol=2e-4)
        seen.append(want)
    assert np.abs(seen[0] - seen[1]).max() > 0.01, "the LoRA must matter"
