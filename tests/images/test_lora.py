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


def test_loras_of_the_first_training_scripts(
    pipeline: StableDiffusionPipeline, make_pipeline: Any, tmp_path: Path
) -> None:
    """Layers of their text encoders were counted by other names, and the file refused."""
    torch.manual_seed(1)
    state = {}
    for part, ends in (("text_encoder", ("q_proj", "v_proj")), ("unet", ("attn1.to_q", "attn1.to_v"))):
        for name, module in getattr(pipeline, part).named_modules():
            if name.endswith(ends):
                layer, _, last = name.rpartition(".")
                key = f"unet.{layer}.processor.{last}_lora"
                if part == "text_encoder":
                    key = f"text_encoder.text_model.{name.removeprefix('text_model.')}.lora_linear_layer"
                state[f"{key}.down.weight"] = torch.randn(2, module.in_features)
                state[f"{key}.up.weight"] = torch.randn(module.out_features, 2)
    file = tmp_path / "old.safetensors"
    save_file(state, file)
    merged, attached = make_pipeline(), make_pipeline()
    merge(merged, [Lora(source=str(file))])
    attached.load_lora_weights(dict(state))
    ids = torch.tensor([[0, 5, 6, 1]])
    with torch.no_grad():
        got, want, without = (each.text_encoder(ids)[0] for each in (merged, attached, pipeline))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert (want - without).abs().max() > 0.1


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of "owner/style" in the hub's cache, empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--style"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


def test_a_lora_by_hub_id_is_the_one_file_that_there_is(cached: Path) -> None:
    """Only diffusers' own name of the file was looked for."""
    lora = Lora(source="owner/style")
    (cached / "README.md").write_text("A style.")
    with pytest.raises(ModelUnavailable, match="LoRA 'owner/style' has 0 safetensors files"):
        lora.file()
    (cached / "style_v2.safetensors").write_bytes(b"x")
    assert lora.file() == cached / "style_v2.safetensors"
    (cached / "more").mkdir()
    (cached / "more" / "style_v1.safetensors").write_bytes(b"x")
    with pytest.raises(
        ModelUnavailable, match=r"name one of them, as owner/style/FILE: more/style_v1.*, style_v2.safe"
    ):
        lora.file()
    assert Lora(source="owner/style/more/style_v1.safetensors").file() == cached / "more" / "style_v1.safetensors"
    (cached / "pytorch_lora_weights.safetensors").write_bytes(b"x")
    assert lora.file() == cached / "pytorch_lora_weights.safetensors"


def test_a_folder_of_several_loras_names_them(make_pipeline: Callable[..., Any], tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(ModelUnavailable, match=r"has 2 safetensors files: name one of them, .*: a.safetensors, b.safe"):
        Lora(source=str(tmp_path)).file()
    with pytest.raises(ModelUnavailable, match="run `git lfs pull` there"):
        merge(make_pipeline(), [Lora(source=str(tmp_path / "a.safetensors"))])
