"""Pipelines read from their files, a model card's settings, and revisions of checkpoints."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import (
    AutoPipelineForText2Image,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
)
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import Qwen2Tokenizer, T5Config, T5EncoderModel

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import ImageGenerator
from hfjax_app.images.checkpoint import (
    fetch_weights,
    network_names,
    read_empty,
    read_whole,
    recommended,
    revision_of,
)
from hfjax_app.images.interface import Recommended
from hfjax_app.images.lora import Lora
from hfjax_app.images.networks import adapted_weights
from hfjax_app.images.samplers import Samplers
from hfjax_app.images.single_file import BASES, CONFIGS
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import Programs

from . import original_layout
from .families import family, flux, qwen_image, z_image
from .pipelines import CLASSES, TOKENS, pixart, stable_diffusion_2, stable_diffusion_3, vae

CARD = "---\ninference:\n  parameters:\n    {}\n---\n# A model\n"
WEIGHTS = "diffusion_pytorch_model.safetensors"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4f' * 32}\nsize 268435456\n"


def weights(pipeline: DiffusionPipeline, files: Checkpoint | None) -> dict[str, Weights]:
    """Each network's weights in the app's layout on a CPU."""
    programs, made = Programs(), {}
    for name in network_names(pipeline):
        network = getattr(pipeline, name)
        made[name], _ = adapted_weights(programs, network, jnp.float32, files and files.part(name))
    return made


def read(folder: Path) -> dict[str, Weights]:
    pipeline = read_empty(folder)
    return weights(pipeline, fetch_weights(folder, pipeline))


def held(pipeline: DiffusionPipeline) -> dict[str, Weights]:
    """The weights of a pipeline that torch has loaded."""
    return weights(pipeline, None)


def assert_equal(got: dict[str, Weights], want: dict[str, Weights]) -> None:
    assert got.keys() == want.keys()
    for network, arrays in want.items():
        assert got[network].keys() == arrays.keys()
        for name, weight in arrays.items():
            assert got[network][name].dtype == weight.dtype, f"{network} {name}"
            np.testing.assert_array_equal(got[network][name], weight, err_msg=f"{network} {name}")


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_read_is_what_from_pretrained_holds(name: str, tmp_path: Path) -> None:
    """In several files: parameters, buffers inside and outside of the checkpoint, tied weights once."""
    CLASSES[name]().save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.rglob("*-of-*.safetensors"))) > 3
    assert_equal(read(tmp_path), held(AutoPipelineForText2Image.from_pretrained(tmp_path, dtype=torch.float32)))


def test_attention_blocks_with_their_old_names(pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    """The autoencoders of Stable Diffusion 1 and 2 were saved before diffusers renamed these layers."""
    old = StableDiffusionPipeline(
        **pipeline.components | {"vae": vae(mid_block_add_attention=True)}, requires_safety_checker=False
    )
    old.save_pretrained(tmp_path)
    file = tmp_path / "vae" / WEIGHTS
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def before(key: str) -> str:
        return next((key.replace(new, name) for new, name in names.items() if new in key), key)

    renamed = {before(key): tensor for key, tensor in load_file(file).items()}
    assert "decoder.mid_block.attentions.0.proj_attn.bias" in renamed
    save_file(renamed, file, {"format": "pt"})
    assert_equal(read(tmp_path), held(old))


@pytest.mark.parametrize(("variant", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_variant_s_files_where_there_are_no_others(
    make_pipeline: Callable[..., Any], tmp_path: Path, variant: str, dtype: torch.dtype
) -> None:
    made = make_pipeline().to(dtype)
    made.save_pretrained(tmp_path, variant=variant, max_shard_size="60KB")
    assert_equal(read(tmp_path), held(made.to(torch.float32)))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        read(folder)
    assert "\n" not in str(caught.value)
    assert str(folder / "unet") in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_without_some_weights(pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    pipeline.save_pretrained(tmp_path)
    file = tmp_path / "unet" / WEIGHTS
    whole = load_file(file)
    save_file({key: tensor for key, tensor in whole.items() if key != "conv_in.bias"}, file, {"format": "pt"})
    assert "is no trained UNet2DConditionModel: its checkpoint lacks conv_in.bias" in refusal(tmp_path)
    save_file(whole | {"conv_in.bias": torch.zeros(3)}, file, {"format": "pt"})
    assert "conv_in.bias is [3], and its config says [16]" in refusal(tmp_path)


def test_models_of_other_kinds_are_named(pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    """Stable Diffusion XL's refiner failed with an error about its missing text encoder."""
    pipeline.save_pretrained(tmp_path)
    index, unet = tmp_path / "model_index.json", tmp_path / "unet" / "config.json"
    settings, config = json.loads(index.read_text()), json.loads(unet.read_text())
    refiner = {"requires_aesthetics_score": True, "_class_name": "StableDiffusionXLImg2ImgPipeline"}
    index.write_text(json.dumps(settings | refiner | {"text_encoder": [None, None], "tokenizer": [None, None]}))
    with pytest.raises(ModelUnavailable, match=r"is a refiner: .* take that one, such as"):
        read_empty(tmp_path)
    index.write_text(json.dumps(settings))
    unet.write_text(json.dumps(config | {"in_channels": 9}))
    with pytest.raises(ModelUnavailable, match="reads 9 channels, and the latents have 4: an inpainting model"):
        read_empty(tmp_path)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("WanPipeline", "is a WanPipeline, which makes videos: take a text-to-image model"),
        ("StableAudioPipeline", "is a StableAudioPipeline, which makes sound: take"),
        ("QwenImageLayeredPipeline", "is a QwenImageLayeredPipeline, which takes a picture apart: take"),
        ("StableDiffusionUpscalePipeline", "is a StableDiffusionUpscalePipeline, which changes pictures: take"),
        ("HunyuanImagePipeline", "is a HunyuanImagePipeline, which guides each step by those before it: take"),
        ("DDPMPipeline", "is a DDPMPipeline, which takes no prompt: take"),
        ("PicturePipeline", "its class 'PicturePipeline' is not one of diffusers' pipelines"),
        (None, "has no folder vae, which its model_index.json names"),
    ],
)
def test_what_makes_something_else_is_named(folder: Path, tmp_path: Path, named: str | None, says: str) -> None:
    """By its configs alone, before any weights are downloaded."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model_index.json"
    if named is None:
        shutil.rmtree(tmp_path / "vae")
    else:
        index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": named}))
    with pytest.raises(ModelUnavailable, match=says) as caught:
        read_empty(tmp_path)
    assert "\n" not in str(caught.value)


def edited(file: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture(scope="module")
def flux_configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Flux.1's folder without weights."""
    folder = tmp_path_factory.mktemp("flux")
    flux().save_pretrained(folder)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    return folder


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("model_index.json", {"text_encoder_2": [None, None]}, "has no text_encoder_2, which a FluxPipeline needs"),
        ("model_index.json", {"scheduler": [None, None]}, "has no scheduler, which a FluxPipeline needs"),
        (
            "model_index.json",
            {"transformer": ["diffusers", "SD3Transformer2DModel"]},
            "/transformer' is a SD3Transformer2DModel, and a FluxPipeline has a FluxTransformer2DModel: it is of",
        ),
        (
            "transformer/config.json",
            {"_class_name": "SD3Transformer2DModel"},
            "is a SD3Transformer2DModel, and model_index.json says FluxTransformer2DModel: it is of another family",
        ),
        (
            "transformer/config.json",
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            r"/transformer' is quantised \(bitsandbytes\): take its unquantised original",
        ),
        (
            "text_encoder_2/config.json",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            r"/text_encoder_2' is quantised \(gptq\): take its unquantised original",
        ),
    ],
)
def test_parts_that_are_missing_or_do_not_belong(
    file: str, values: dict[str, Any], says: str, flux_configs: Path, tmp_path: Path
) -> None:
    """By configs alone. They ended in errors of shapes or of None, after the weights were downloaded."""
    shutil.copytree(flux_configs, tmp_path, dirs_exist_ok=True)
    read_empty(tmp_path)
    edited(tmp_path / file, **values)
    with pytest.raises(ModelUnavailable, match=says) as caught:
        read_empty(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelUnavailable, match=r"has no model_index.json, .* or name one \.safetensors file"):
        read_empty(tmp_path)


def test_a_gguf_file_of_an_image_model(tmp_path: Path) -> None:
    (tmp_path / "flux1-dev-Q4_0.gguf").write_bytes(b"GGUF")
    for source in (tmp_path, tmp_path / "flux1-dev-Q4_0.gguf"):
        with pytest.raises(ModelUnavailable, match="is in the GGUF format, which is for other programs"):
            read_empty(source)


def test_weights_with_scales_are_not_read_without_them(pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    """Float8 as ComfyUI has it. Scales were passed over, and pictures were noise."""
    pipeline.save_pretrained(tmp_path)
    file = tmp_path / "unet" / WEIGHTS
    save_file(load_file(file) | {"conv_in.scale_weight": torch.ones(1)}, file, {"format": "pt"})
    assert "is quantised (float8 with scales, as ComfyUI has it: conv_in.scale_weight)" in refusal(tmp_path)


def test_a_lora_that_is_not_there_is_told_before_weights_are_read(flux_configs: Path) -> None:
    """They were downloaded first."""
    with pytest.raises(ModelUnavailable, match="LoRA: model 'owner/none' is no folder here"):
        ImageGenerator.from_pretrained(flux_configs, loras=[Lora(source="owner/none")])


@pytest.mark.parametrize("make", [stable_diffusion_2, stable_diffusion_3])
def test_a_tokenizer_without_a_length_has_its_text_encoder_s(
    make: Callable[[], DiffusionPipeline], tmp_path: Path
) -> None:
    """Training scripts leave it out; then prompts were padded to 10^30 tokens: an OverflowError."""
    whole = make()
    whole.save_pretrained(tmp_path)
    for file in tmp_path.glob("tokenizer*/tokenizer_config.json"):
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "model_max_length"}))
    pipeline = read_empty(tmp_path)
    assert pipeline.tokenizer.model_max_length == TOKENS
    assert getattr(pipeline, "tokenizer_max_length", TOKENS) == TOKENS


def test_a_text_encoder_s_tokenizer_of_a_sentencepiece_file(tmp_path: Path) -> None:
    """PixArt's and Stable Diffusion 3's have no tokenizer.json."""
    whole = pixart()
    whole.text_encoder = T5EncoderModel(T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4))
    whole.save_pretrained(tmp_path)
    for file in (tmp_path / "tokenizer").iterdir():
        file.unlink()
    trained, options = io.BytesIO(), {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    lines = iter(["a red dot on a blue square", "the quick brown fox jumps over the lazy dog"] * 20)
    SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=trained, vocab_size=48, minloglevel=2, hard_vocab_limit=False, **options
    )
    (tmp_path / "tokenizer" / "spiece.model").write_bytes(trained.getvalue())
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "model_max_length": TOKENS}
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    found = read_empty(tmp_path).tokenizer("a red dot")["input_ids"]
    assert found == [*SentencePieceProcessor(model_proto=trained.getvalue()).encode("a red dot"), 1]


@pytest.fixture
def single_file(
    pipeline: StableDiffusionPipeline, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """All weights of `pipeline` in one file; its configs are those of `folder`."""
    monkeypatch.setitem(CONFIGS, "v1", str(folder))
    file = tmp_path / "mix" / "someMix_v3.safetensors"
    file.parent.mkdir()
    save_file(original_layout.whole(pipeline), file)
    return file


def test_a_single_file_is_a_whole_model(pipeline: StableDiffusionPipeline, folder: Path, single_file: Path) -> None:
    """As model sites offer it. The advice was to name its folder, which was refused too."""
    want = held(AutoPipelineForText2Image.from_pretrained(folder, dtype=torch.float32))
    for source in (single_file, single_file.parent):
        assert_equal(held(read_whole(source)), want)
        assert network_names(read_empty(source)) == ["text_encoder", "unet", "vae"]
        assert revision_of(source) == hashlib.sha256(single_file.read_bytes()).hexdigest()[:12]


def test_single_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    for key, says in {
        "model.diffusion_model.out.0.weight": "stable-diffusion-v1-5 can't be had here: convert it into a folder",
        "lora_unet_down_blocks_0.lora_down.weight": "is a LoRA and no model: name it in HFJAX_IMAGE_LORA",
        "double_blocks.0.img_attn.norm.key_norm.scale": "is a transformer alone, and its other parts are those of "
        "black-forest-labs/FLUX.1-schnell: model 'black-forest-labs/FLUX.1-schnell' is no folder here",
        "token_refiner.blocks.0.attn.qkv_proj.weight": "is a single file of minimax-h3, and no whole Stable Diffusion",
        "head.modulation": "is no single file that diffusers knows: ",
        "double_blocks.0.weight": "no whole Stable Diffusion 1, 2 or XL, nor the transformer .*: take its folder",
        "scaled_fp8": "is quantised .float8 with scales, as ComfyUI has it: scaled_fp8.: take the file in float16",
        "double_blocks.0.img_attn.qkv.scale_weight": "is quantised .float8 with scales",
        "layers.0.attention.qkv.weight.quant_state.bitsandbytes__nf4": "is quantised .bitsandbytes: ",
    }.items():
        save_file({key: torch.zeros(2)}, file)
        for source in (file, tmp_path):
            with pytest.raises(ModelUnavailable, match=f"'x.safetensors' .*{says}") as caught:
                read_empty(source)
            assert "name the folder" not in str(caught.value)
    file.write_bytes(b"no tensors")
    with pytest.raises(ModelUnavailable, match="is no safetensors file, or is damaged"):
        read_empty(file)


@pytest.mark.parametrize(("kind", "make"), [("z-image-turbo", z_image), ("qwen-image", qwen_image)])
def test_a_single_file_of_a_transformer(
    kind: str, make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other parts are those of the model that it was made from, whose card is its own."""
    base, file = tmp_path / "base", tmp_path / "someMix.safetensors"
    pipeline = make()
    pipeline.save_pretrained(base)
    save_file(original_layout.transformer(pipeline), file)
    (base / "README.md").write_text(CARD.format("{num_inference_steps: 9}"))
    shutil.rmtree(base / "transformer")
    pipeline.transformer.save_config(base / "transformer")
    monkeypatch.setitem(BASES, kind, str(base))
    assert_equal(held(read_whole(file)), held(pipeline))
    assert recommended(file).steps == 9
    lacking = {key: tensor for key, tensor in load_file(file).items() if "img_in" not in key and "x_emb" not in key}
    save_file(lacking, file)
    with pytest.raises(ModelUnavailable, match=r"'someMix.safetensors' lacks a tensor of a \w+Model"):
        read_whole(file)
    shutil.rmtree(base / "vae")
    pipeline.vae.save_config(base / "vae")
    with pytest.raises(ModelUnavailable, match=r"/vae' has no weights"):
        read_whole(file)


@pytest.mark.slow
def test_a_single_file_of_flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers converts its full width only: 500 million parameters in a block of each kind."""
    heads = {"attention_head_dim": 128, "num_attention_heads": 24, "axes_dims_rope": (16, 56, 56)}
    pipeline = flux(heads=heads)
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter.copy_(parameter.bfloat16())
    base, file = tmp_path / "base", tmp_path / "someMix.safetensors"
    save_file(original_layout.flux_transformer(pipeline), file)
    transformer, pipeline.transformer = pipeline.transformer, flux().transformer
    pipeline.save_pretrained(base)
    shutil.rmtree(base / "transformer")
    transformer.save_config(base / "transformer")
    monkeypatch.setitem(BASES, "flux-dev", str(base))
    read = read_whole(file)
    pipeline.transformer = transformer
    assert_equal(held(read), held(pipeline))


ZERO_SIGNAL = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}


@pytest.mark.parametrize(
    ("tensors", "metadata", "changed"),
    [
        ((), {}, {}),
        (("v_pred",), {}, {"prediction_type": "v_prediction"}),
        (("v_pred", "ztsnr"), {}, {"prediction_type": "v_prediction"} | ZERO_SIGNAL),
        ((), {"modelspec.prediction_type": "v"}, {"prediction_type": "v_prediction"}),
        ((), {"modelspec.prediction_type": "epsilon"}, {"prediction_type": "epsilon"}),
        ((), {"modelspec.prediction_type": "a novel one"}, {}),
        (
            (),
            {"ss_v_parameterization": "True", "ss_zero_terminal_snr": "True"},
            {"prediction_type": "v_prediction"} | ZERO_SIGNAL,
        ),
    ],
    ids=str,
)
def test_a_single_file_says_what_it_predicts(
    folder: Path, single_file: Path, tensors: tuple[str, ...], metadata: dict[str, str], changed: dict[str, Any]
) -> None:
    """By tensors as ComfyUI reads them, or kohya's metadata. It was drawn as if it predicted noise: grey mush."""
    state = load_file(single_file) | {name: torch.zeros(0) for name in tensors}
    save_file(state, single_file, metadata)
    want = DDIMScheduler.from_pretrained(folder, subfolder="scheduler").config
    for pipeline in (read_empty(single_file), read_whole(single_file)):
        found = pipeline.scheduler.config
        assert {name: found.get(name) for name in changed} == changed
        assert all(found[name] == want[name] for name in ("prediction_type", "timestep_spacing") if name not in changed)
        Samplers(pipeline.scheduler)


def test_a_scheduler_without_the_options_of_a_single_file_is_replaced(
    pipeline: StableDiffusionPipeline, single_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stable Diffusion 1's own, PNDM, has no schedule that ends without signal."""
    changed = tmp_path / "configs"
    pipeline.save_pretrained(changed)
    PNDMScheduler(skip_prk_steps=True, steps_offset=1).save_pretrained(changed / "scheduler")
    index = json.loads((changed / "model_index.json").read_text())
    (changed / "model_index.json").write_text(json.dumps(index | {"scheduler": ["diffusers", "PNDMScheduler"]}))
    monkeypatch.setitem(CONFIGS, "v1", str(changed))
    save_file(load_file(single_file) | {"v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}, single_file)
    found = read_empty(single_file).scheduler
    assert isinstance(found, EulerDiscreteScheduler)
    assert {name: found.config[name] for name in ZERO_SIGNAL} == ZERO_SIGNAL


@pytest.mark.parametrize("lost", ["unet/diffusion_pytorch_model.safetensors", "tokenizer/tokenizer.json"])
def test_a_folder_that_was_cloned_without_git_lfs(pipeline: StableDiffusionPipeline, tmp_path: Path, lost: str) -> None:
    """To copy or download it again, as the advice was, gives the same text again."""
    pipeline.save_pretrained(tmp_path)
    (tmp_path / lost).write_text(POINTER)
    with pytest.raises(ModelUnavailable, match=r"cloned without git-lfs.*run `git lfs pull` there") as caught:
        read(tmp_path)
    assert Path(lost).name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_single_file_that_is_a_pointer(tmp_path: Path) -> None:
    (tmp_path / "mix.safetensors").write_text(POINTER)
    with pytest.raises(ModelUnavailable, match=r"without git-lfs, which has the content of mix.safetensors"):
        read_empty(tmp_path / "mix.safetensors")


@pytest.mark.parametrize("part", ["unet", "tokenizer"])
def test_code_in_a_checkpoint_is_never_run(pipeline: StableDiffusionPipeline, tmp_path: Path, part: str) -> None:
    """A component's class may be in a file beside it; the refusal once named the Python argument that allows it."""
    pipeline.save_pretrained(tmp_path)
    proof = tmp_path / "proof"
    (tmp_path / part / "trap.py").write_text(f"open({str(proof)!r}, 'w')\n")
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {part: ["trap", "Trap"]}))
    with pytest.raises(ModelUnavailable) as caught:
        read(tmp_path)
    line = f"model {str(tmp_path)!r} needs code of its own, and code that comes with a checkpoint is never run"
    assert str(caught.value) == line
    assert not proof.exists()


PEAK = """
import sys
from pathlib import Path
from hfjax_app.runtime.process import prepare
prepare()
import jax.numpy as jnp
from hfjax_app.images.checkpoint import fetch_weights, read_empty
from hfjax_app.images.interface import Recommended
from hfjax_app.images.networks import adapted_weights
from hfjax_app.runtime.programs import Programs

def status(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

def read(folder):
    pipeline = read_empty(folder)
    files = fetch_weights(folder, pipeline).part("unet")
    weights, unet = adapted_weights(Programs(), pipeline.unet, jnp.bfloat16, files)
    assert weights["conv_in.weight"].shape[:2] == (3, 3)  # kernels are in the CPU's layout
    return weights

read(sys.argv[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
before = status("VmRSS")
weights = read(sys.argv[2])
print(status("VmHWM") - before - sum(weight.nbytes for weight in weights.values()))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is read from Linux's /proc")
def test_the_host_holds_little_more_than_one_file(
    folder: Path, make_pipeline: Callable[..., StableDiffusionPipeline], tmp_path: Path
) -> None:
    """Of a whole UNet in its pipeline, beyond the arrays themselves, with kernels as XLA on CPU takes them."""
    large = make_pipeline(block_out_channels=(192, 384))
    large.save_pretrained(tmp_path, max_shard_size="20MB")
    sizes = [path.stat().st_size for path in (tmp_path / "unet").glob("*.safetensors")]
    assert len(sizes) >= 4
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PEAK, str(folder), str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 1.3 * max(sizes)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("guidance_scale: 4", Recommended(guidance_scale=4.0)),
        ("{num_inference_steps: 1, guidance_scale: 0.0}", Recommended(steps=1, guidance_scale=0.0)),
        ("{num_inference_steps: 2.5, guidance_scale: .nan}", Recommended()),
        ("{num_inference_steps: 100000, guidance_scale: -1}", Recommended()),
        ("{num_inference_steps: true, guidance_scale: 'x'}", Recommended()),
        ("- 4", Recommended()),
    ],
)
def test_the_card_recommends(tmp_path: Path, parameters: str, expected: Recommended) -> None:
    (tmp_path / "README.md").write_text(CARD.format(parameters))
    assert recommended(tmp_path) == expected


CODE = """# A model
```sh
pip install diffusers
```
```python
image = pipe(prompt, num_inference_steps=9, guidance_scale=0.0).images[0]
```
```python
image = pipe(prompt, num_inference_steps=50)
```
"""


def test_a_card_s_code_recommends_where_its_front_matter_does_not(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CODE)
    assert recommended(tmp_path) == Recommended(steps=9, guidance_scale=0.0)
    (tmp_path / "README.md").write_text(CARD.format("{guidance_scale: 4, width: 512, height: 256}") + CODE)
    assert recommended(tmp_path) == Recommended(steps=9, guidance_scale=4.0, size=(512, 256))
    (tmp_path / "README.md").write_text("")
    assert recommended(tmp_path, stable_diffusion_3()) == Recommended(steps=28, guidance_scale=7.0)
    assert recommended(tmp_path, pixart()) == Recommended()


@pytest.mark.parametrize("card", ["", "# no front matter", "---\n: [\n---\n", "---\ninference: false\n---\n", "\x00"])
def test_a_bad_card_never_stops_a_model_from_loading(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert recommended(tmp_path) == Recommended()
    assert recommended(tmp_path / "missing") == recommended("owner/name") == Recommended()


def test_a_revision_depends_on_files_that_draw_and_not_on_the_card(tmp_path: Path) -> None:
    """Another configuration or another vocabulary draws another picture from the same weights."""
    parts = (
        "unet/model.safetensors",
        "scheduler/scheduler_config.json",
        "tokenizer/merges.txt",
        "tokenizer/spiece.model",
    )
    for part in (*parts, "README.md"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_text("one")
    found = [revision_of(tmp_path)]
    (tmp_path / "README.md").write_text("two")
    assert [revision_of(tmp_path)] == found
    for part in parts:
        (tmp_path / part).write_text("two")
        found.append(revision_of(tmp_path))
    assert len(set(found)) == 1 + len(parts)
    assert {len(revision) for revision in found} == {12}


def test_the_revision_of_a_model_of_the_hub_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the hub's cache: the commit of the branch, or the one in the name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--painter"
    for commit in ("a1" * 20, "b2" * 20):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "model_index.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("b2" * 20)
    assert revision_of("someone/painter") == "b2" * 6
    assert revision_of(f"someone/painter@{'a1' * 20}") == "a1" * 6


@pytest.mark.parametrize("lost", ["files", "folder"])
def test_a_vocabulary_that_was_lost_is_not_made_up(lost: str, folder: Path, tmp_path: Path) -> None:
    """transformers would make one of four words, and every prompt would draw the same picture."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for file in (tmp_path / "tokenizer").iterdir():
        if lost == "folder" or file.name != "tokenizer_config.json":
            file.unlink()
    if lost == "folder":
        (tmp_path / "tokenizer").rmdir()
    with pytest.raises(ModelUnavailable) as error:
        read_empty(tmp_path)
    assert "tokenizer" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_of_a_processor_the_tokenizer_is_read(tmp_path: Path) -> None:
    """Qwen2VLProcessor can't be loaded without torchvision, for videos."""
    family("Kandinsky 5").save_pretrained(tmp_path)
    index = tmp_path / "model_index.json"
    parts = json.loads(index.read_text())
    index.write_text(json.dumps(parts | {"tokenizer": ["transformers", "Qwen2VLProcessor"]}))
    for pipeline in (read_empty(tmp_path), read_whole(tmp_path)):
        assert isinstance(pipeline.components["tokenizer"], Qwen2Tokenizer)
