"""LoRA chosen for each picture: the pictures are those of diffusers with the adapters attached."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest, replay
from hfjax_app.images.generation_parameters import fitted, read_png
from hfjax_app.images.lora import Lora, read_loras
from hfjax_app.images.networks import Storage
from hfjax_app.limits import IMAGE_KEPT_MERGES
from hfjax_app.runtime.checkpoints.int8 import round_in_place
from tests.conftest import quickly_compiled

OPTIONS: dict[str, Any] = {"prompt": "red dot", "guidance_scale": 2.0, "steps": 3}
LATENTS = np.random.default_rng(1).standard_normal((1, 4, 16, 16), np.float32)


def made(make_pipeline: Callable[..., Any], folder: Path, seed: int, **options: Any) -> Path:
    """A LoRA with random weights for the denoiser and the text encoder, as diffusers saves it."""
    pipeline = make_pipeline(**options)
    torch.manual_seed(seed)
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


@pytest.fixture(scope="module")
def two(folder: Path, loras: list[Path]) -> ImageGenerator:
    """A generator with two LoRAs, of which the first is in each picture for which nothing is chosen."""
    with quickly_compiled():  # made before a module's own fixtures
        return ImageGenerator.from_pretrained(
            folder, loras=[Lora(source=str(loras[0]), weight=0.7), Lora(source=str(loras[1]))]
        )


def drawn(generator: ImageGenerator, **options: Any) -> Any:
    *_, step = generator.generate(ImageRequest(**{"latents": LATENTS} | OPTIONS | options))
    return step.pictures[0]


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")  # of diffusers' two adapters
def test_chosen_loras_equal_diffusers(
    two: ImageGenerator, generator: ImageGenerator, folder: Path, loras: list[Path], compilations: Callable
) -> None:
    attached = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    attached.set_progress_bar_config(disable=True)
    for number, path in enumerate(loras):
        attached.load_lora_weights(path, adapter_name=f"a{number}")
    first, second = (path.name for path in loras)
    choices: list[tuple[dict[str, float], dict[str, Any]]] = [
        ({"a0": 0.7}, {}),
        ({"a0": 0.7, "a1": -0.4}, {"loras": f"{second}:-0.4,{first}:0.7"}),
        ({"a0": 0.7, "a1": -0.4}, {"prompt": f"red <lora:{second}:-0.4>dot"}),
        ({"a1": 1.0}, {"loras": second}),
        ({"a1": 0.5}, {"loras": f"{second}:2", "prompt": f"red dot<lora:{second}:0.5>"}),
    ]
    without = drawn(two, loras="")
    np.testing.assert_array_equal(without.pixels, drawn(generator).pixels)
    for weights, options in choices:
        attached.set_adapters(list(weights), list(weights.values()))
        want = attached(
            prompt="red dot", guidance_scale=2.0, num_inference_steps=3, latents=torch.tensor(LATENTS), output_type="np"
        ).images[0]
        with compilations() as compiled:
            got = drawn(two, **options).pixels
        assert compiled == []
        np.testing.assert_allclose(got, want, atol=1e-3)
        assert np.abs(without.pixels - want).max() > 0.01, "the LoRAs must matter"
    np.testing.assert_array_equal(drawn(two, loras="").pixels, without.pixels)


def test_int8_weights_are_merged_and_rounded_again(folder: Path, loras: list[Path], compilations: Callable) -> None:
    """Those of torch's network are rounded, changed by the LoRA, and rounded again."""
    want = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    networks = [want.unet, want.text_encoder]
    for network in networks:
        round_in_place(network)
    want.load_lora_weights(loras[0])
    want.fuse_lora(lora_scale=0.7)
    want.unload_lora_weights()
    changed = {name: tensor.clone() for name, tensor in want.unet.state_dict().items()}
    for network in networks:
        round_in_place(network)
    assert any((tensor != changed[name]).any() for name, tensor in want.unet.state_dict().items()), "rounding matters"
    generator = ImageGenerator.from_pretrained(
        folder, storage=Storage(quantize="int8"), loras=[Lora(source=str(loras[0]))]
    )
    own = ImageGenerator(want)
    with compilations() as compiled:
        got = drawn(generator, loras=f"{loras[0].name}:0.7").latents
        without = drawn(generator).latents
    assert compiled == []
    rounded = drawn(own).latents
    np.testing.assert_allclose(got, rounded, rtol=0, atol=1e-3 * np.abs(rounded).max())
    assert np.abs(without - rounded).max() > 0.05, "the LoRA must matter"


@pytest.mark.slow
def test_text_encoders_on_the_host_take_loras(two: ImageGenerator, folder: Path, loras: list[Path]) -> None:
    """To the last bit, and what was made of a text with one LoRA is not taken for that with another."""
    chosen = [Lora(source=str(loras[0]), weight=0.7), Lora(source=str(loras[1]))]
    on_host = ImageGenerator.from_pretrained(folder, storage=Storage(text_encoders="host"), loras=chosen)
    for choice in ("", loras[0].name, "", loras[1].name, None):
        np.testing.assert_array_equal(drawn(on_host, loras=choice).pixels, drawn(two, loras=choice).pixels)


def test_two_users_side_by_side_get_their_own(two: ImageGenerator, loras: list[Path]) -> None:
    """Their pictures take turns, step by step, also where weights of words are read."""
    choices = ["", loras[0].name, loras[1].name, f"{loras[0].name}:-1,{loras[1].name}:1.5"]
    options = OPTIONS | {"prompt": "red (dot:1.5)", "latents": LATENTS}
    alone = [drawn(two, **options, loras=loras).pixels for loras in choices]
    requests = [two.generate(ImageRequest(**options, loras=loras)) for loras in choices]
    together: list[Any] = [None] * len(choices)
    while any(steps := [next(request, None) for request in requests]):
        together = [step or last for step, last in zip(steps, together, strict=True)]
    for own, step in zip(alone, together, strict=True):
        np.testing.assert_array_equal(step.pictures[0].pixels, own)
    assert len({pixels.tobytes() for pixels in alone}) == len(choices)


def test_the_last_merges_are_kept(two: ImageGenerator, loras: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    weights = two.held_memory.weights
    for share in range(1, 2 + IMAGE_KEPT_MERGES):
        drawn(two, loras=f"{loras[0].name}:{share}", steps=1)
    kept = two.held_memory.weights
    assert kept >= weights
    drawn(two, loras=f"{loras[0].name}:-1", steps=1)
    assert two.held_memory.weights == kept, "the oldest one went"
    monkeypatch.setattr("hfjax_app.images.merged_weights.free_memory", lambda: 1 << 10)
    with pytest.raises(ModelUnavailable, match=r"its merge takes \d+ MiB, and 0 MiB are free"):
        drawn(two, loras=f"{loras[0].name}:-2", steps=1)
    assert two.held_memory.weights < kept, "the room was made first"


def test_files_keep_what_was_chosen(two: ImageGenerator, loras: list[Path]) -> None:
    first, second = (path.name for path in loras)
    picture = drawn(two, prompt=f"red <lora:{second}:0.5>", latents=None, seed=3)
    _, parameters = read_png(picture.png)
    assert parameters.values["loras"] == f"{first}:0.7,{second}:0.5"
    assert parameters.model.endswith(f"+ {first} (0.7) + {second} (0.5)")
    assert parameters.revision != two.facts.revision
    assert list(replay(two, picture.png))[-1].is_identical
    assert fitted(parameters, two.facts).left_out == ()
    elsewhere = replace(two.facts, loras={second: two.facts.loras[second]})
    known = rf"LoRA '{first}': must be one of {second}"
    with pytest.raises(RequestRejected, match=known):
        elsewhere.completed(parameters.request())
    assert any(re.match(known, line) for line in fitted(parameters, elsewhere).left_out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loras": "none:1"}, "LoRA 'none': must be one of lora1"),
        ({"prompt": "a <lora:none:1>"}, "LoRA 'none': must be one of lora1"),
        ({"prompt": "a <lora:none:much>"}, "<lora:none:much>: must have a weight behind its name, such as 0.8"),
        ({"loras": "a:much"}, "loras = 'a:much': must be text such as style:0.8,other:0.5"),
        ({"loras": "a:5"}, "weight of the LoRA a = 5.0: must be a number from -4 to 4"),
        ({"loras": "a:nan"}, "weight of the LoRA a = nan"),
        ({"loras": 7}, "loras = 7: must be text"),
        ({"loras": ",".join(f"a{i}" for i in range(9))}, "9 LoRAs: at most 8"),
    ],
)
def test_wrong_choices_are_refused_at_once(two: ImageGenerator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        two.generate(ImageRequest(**OPTIONS | options))
    assert "\n" not in str(caught.value)


def test_a_model_without_loras_says_so(generator: ImageGenerator) -> None:
    with pytest.raises(RequestRejected, match="LoRA 'style': this model has none"):
        generator.generate(ImageRequest(**OPTIONS, loras="style"))
    *_, step = generator.generate(ImageRequest(**OPTIONS | {"prompt": "a <lora:style:0.8>"}))
    assert step.notice == "prompt: no text: <lora:style:0.8>"


def test_what_does_not_fit_is_refused(make_pipeline: Callable[..., Any], loras: list[Path], tmp_path: Path) -> None:
    """diffusers logs what it passes over, and draws without it."""
    state = load_file(next(loras[0].glob("*")))

    def refusal(changed: dict[str, torch.Tensor]) -> str:
        file = tmp_path / "style.safetensors"
        save_file(changed, file)
        with pytest.raises(ModelUnavailable) as caught:
            read_loras(make_pipeline(), [Lora(source=str(file))])
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
    attached = make_pipeline()
    attached.load_lora_weights(dict(state))
    [lora] = read_loras(pipeline, [Lora(source=str(file))])
    assert lora.parts.keys() == {"unet", "text_encoder"}
    for name, changed in lora.parts.items():
        layers = dict(getattr(attached, name).named_modules())
        for key, factors in changed.items():
            want = layers[key.removesuffix(".weight")].get_delta_weight("default_0").detach().numpy()
            np.testing.assert_allclose((factors.up @ factors.down).reshape(factors.shape), want, rtol=1e-5, atol=1e-6)


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
        read_loras(make_pipeline(), [Lora(source=str(tmp_path / "a.safetensors"))])
