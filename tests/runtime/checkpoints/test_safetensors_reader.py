"""Checkpoints become arrays without the whole checkpoint in memory; each failure is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DistilBertConfig,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
)

from hfjax_app.chat.model.decoder import Architecture, bare_model
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.int8 import Int8
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.tokenizer_files import load as load_tokenizer
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import Weights, weights_of
from tests.chat.model.test_architectures import make_model


def load(folder: Path, dtype: torch.dtype = torch.float32, *, quantize: str = "none") -> Weights:
    """A checkpoint's weights without transforms, except quantisation if requested."""
    model = empty_model(AutoModelForCausalLM, folder, dtype)
    return read(model, folder, transforms=transforms_of(model, quantize))


def transforms_of(model: torch.nn.Module, quantize: str = "none") -> Transforms:
    return Transforms(Int8(model), Cast(model)) if quantize == "int8" else Transforms(Cast(model))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a valid checkpoint, which a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def refusal(folder: Path) -> str:
    """The message for a folder that must not load."""
    with pytest.raises(ModelUnavailable) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
CONFIGS = {
    "llama": LlamaConfig(num_key_value_heads=2, tie_word_embeddings=True, **SMALL),
    # Buffers outside the checkpoint: the embedding's scale and two sets of rotary frequencies.
    "gemma3": Gemma3TextConfig(num_key_value_heads=1, head_dim=16, **SMALL),
    # The checkpoint has a tensor for each expert, the model one array of all.
    "mixtral": MixtralConfig(num_key_value_heads=2, num_local_experts=12, **SMALL),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shard", ["1GB", "16KB"])
def test_weights_equal_those_of_from_pretrained(name: str, shard: str, tmp_path: Path) -> None:
    """Sharded or not: parameters, buffers, tied weights once; experts are merged in order, also across files."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "16KB")
    expected = weights_of(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    weights = load(tmp_path)
    assert weights.keys() == expected.keys()
    for key in expected:
        assert weights[key].dtype == expected[key].dtype, key
        np.testing.assert_array_equal(weights[key], expected[key], err_msg=key)


def test_the_dtype_is_that_of_parameters(folder: Path) -> None:
    """Rotary frequencies in bfloat16 would give distant tokens wrong positions."""
    weights = load(folder, torch.bfloat16)
    dtypes = {name: value.dtype for name, value in weights.items()}
    others = {name for name, dtype in dtypes.items() if dtype != jnp.bfloat16}
    assert others == {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"}
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).lm_head.weight
    np.testing.assert_array_equal(weights["lm_head.weight"].astype(jnp.float32), expected.detach().float())


@pytest.mark.parametrize("architecture", ["deepseek_v3", "dots1", "ernie4_5_moe", "glm4_moe", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tensors_that_the_architecture_keeps_in_float32(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """The bias that chooses experts in DeepSeek-V3 and others was rounded on accelerators, and chose other experts."""
    made = make_model(architecture)
    for name, tensor in made.state_dict().items():
        if "e_score_correction_bias" in name:
            tensor.copy_(torch.rand_like(tensor))
    made.save_pretrained(tmp_path)
    expected = weights_of(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype))
    weights = load(tmp_path, dtype)
    assert {name: value.dtype for name, value in weights.items()} == {name: v.dtype for name, v in expected.items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    model = empty_model(AutoModelForCausalLM, tmp_path, dtype)
    bare = bare_model(Architecture(type(model), model.config, dtype))
    for planned in (shapes(model, transforms_of(model)), shapes(bare, transforms_of(bare))):
        assert {name: value.dtype for name, value in planned.items()} == {n: v.dtype for n, v in expected.items()}
    for int8 in (shapes(model, transforms_of(model, "int8")), load(tmp_path, dtype, quantize="int8")):
        same = {name: value.dtype for name, value in int8.items() if name in expected and value.dtype != jnp.int8}
        assert same == {name: expected[name].dtype for name in same}


@pytest.mark.parametrize("architecture", ["gptj", "codegen"])
def test_buffers_are_not_computed_in_the_dtype_of_parameters(architecture: str, tmp_path: Path) -> None:
    """GPT-J's rotary frequencies were rounded to bfloat16: sines were 0.16 off at position 500, 0.84 at 2,000."""
    make_model(architecture).save_pretrained(tmp_path)
    weights = load(tmp_path, torch.bfloat16)
    for name, value in weights_of(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)).items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)


def test_a_layer_that_is_kept_in_float32_is_not_quantised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "_keep_in_fp32_modules_strict", ["lm_head"])
    weights = load(folder, torch.bfloat16, quantize="int8")
    assert weights["lm_head.weight"].dtype == jnp.float32
    assert weights["model.layers.0.mlp.up_proj.weight"].dtype == jnp.int8


def test_arrays_do_not_share_memory_with_the_file(folder: Path) -> None:
    """On a CPU they could; an update of the model's files in place would then change a running server's weights."""
    weights = load(folder)
    before = np.array(weights["lm_head.weight"])
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * (folder / "model.safetensors").stat().st_size)
    np.testing.assert_array_equal(weights["lm_head.weight"], before)


def test_each_tensor_has_the_sharding_of_its_placement(folder: Path) -> None:
    asked = {}
    device = jax.devices()[0]

    def placement(name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        asked[name] = shape
        return jax.sharding.SingleDeviceSharding(device)

    weights = read(empty_model(AutoModelForCausalLM, folder), folder, placement=placement)
    assert asked == {name: value.shape for name, value in weights.items()}


PEAK = """
import sys, torch
from pathlib import Path
from hfjax_app.runtime.process import prepare
prepare()
import jax
from transformers import AutoModelForCausalLM
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read

def status(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

jax.device_put(0.0).block_until_ready()
model = empty_model(AutoModelForCausalLM, sys.argv[1], getattr(torch, sys.argv[2]))
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
before = status("VmRSS")
weights = read(model, sys.argv[1])
print(status("VmHWM") - before - sum(weight.nbytes for weight in weights.values()))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is read from Linux's /proc")
def test_the_host_holds_little_more_than_one_file(tmp_path: Path) -> None:
    """Besides the arrays, which are host memory on a CPU: at most 1.3 times the largest of several files.

    The files are float32 and the arrays bfloat16, so each tensor exists twice for a short time.
    """
    config = LlamaConfig(
        vocab_size=256, hidden_size=768, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="40MB")
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) >= 5
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", PEAK, str(tmp_path), "bfloat16"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 1.3 * max(sizes)


def test_a_checkpoint_without_some_weights(folder: Path) -> None:
    """transformers would use random weights and only warn."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "is no trained LlamaForCausalLM: its checkpoint lacks model.norm.weight" in refusal(folder)


def test_two_different_weights_that_the_config_ties(folder: Path) -> None:
    """Fine-tuning may untie an output layer and keep the config; its weights replaced the embedding silently."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    message = refusal(folder)
    assert "its config ties lm_head.weight and model.embed_tokens.weight, and its files hold different ones" in message
    assert "its config.json should say tie_word_embeddings: false" in message
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(load(folder)["model.embed_tokens.weight"], weights["lm_head.weight"])


def test_weights_of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 33}))
    assert "is [32, 16], and its config says [33, 16]" in refusal(folder)


def test_a_quantised_checkpoint(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    assert "is quantised (gptq): take its unquantised original" in refusal(folder)


def test_truncated_safetensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated or corrupt" in refusal(folder)


def test_garbage_and_empty_safetensors(folder: Path) -> None:
    for content in (b"garbage" * 1000, b""):
        (folder / "model.safetensors").write_bytes(content)
        assert "truncated or corrupt" in refusal(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights (*.safetensors)" in refusal(folder)


def test_bin_weights_are_refused_unopened(folder: Path) -> None:
    """Pickles can run code when they are read; this one would write a file."""
    (folder / "model.safetensors").unlink()
    proof = folder / "proof"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return open, (str(proof), "w")

    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")
    assert "only safetensors files are loaded" in refusal(folder)
    assert not proof.exists()


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"model_type": "no_such_architecture"}'])
def test_a_missing_or_broken_config(folder: Path, content: str | None) -> None:
    config = folder / "config.json"
    config.unlink() if content is None else config.write_text(content)
    message = refusal(folder)
    assert "config.json" in message or "which this transformers does not know" in message


def wants_code(folder: Path) -> Path:
    """Makes a checkpoint and its tokenizer require their own code; returns the file that this code would write."""
    proof = folder / "proof"
    code = f"from transformers import LlamaConfig\nclass Trap(LlamaConfig):\n    pass\nopen({str(proof)!r}, 'w')\n"
    (folder / "trap.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "trap.Trap", "AutoModelForCausalLM": "trap.Trap"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "trap", "auto_map": names}))
    tokenizer = {"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": ["trap.Trap", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return proof


def test_code_in_a_checkpoint_is_never_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks at the terminal whether to run it; this app never does."""
    proof = wants_code(folder)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert "needs code of its own, and code that comes with a checkpoint is never run" in refusal(folder)
    with pytest.raises(ModelUnavailable, match="needs code of its own"):
        load_tokenizer(AutoTokenizer.from_pretrained, folder)
    assert not proof.exists()


def test_a_failing_tokenizer_is_not_reported_as_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").write_text("no JSON")
    with pytest.raises(ModelUnavailable, match="can't be loaded") as error:
        load_tokenizer(AutoTokenizer.from_pretrained, folder)
    assert "weights" not in str(error.value)


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    """For many classes transformers uses an empty vocabulary instead, and every word is unknown."""
    DistilBertConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"has no tokenizer \(tokenizer.json\)"):
        load_tokenizer(AutoTokenizer.from_pretrained, tmp_path)


@pytest.mark.parametrize("kind", ["DistilBertTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "RobertaTokenizer"])
def test_a_missing_vocabulary_is_refused(kind: str, tmp_path: Path) -> None:
    """The remaining file names the class, and transformers makes a vocabulary of five words."""
    DistilBertConfig().save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(ModelUnavailable, match="has no vocabulary for its tokenizer"):
        load_tokenizer(AutoTokenizer.from_pretrained, tmp_path)


def test_a_file_in_place_of_its_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    assert "is a file: name the folder that it is in" in refusal(folder / "model-00001-of-00001.safetensors")


def test_a_wrong_config_is_not_reported_as_missing_weights(folder: Path) -> None:
    """The message contains the reason, which transformers gives in a second line."""
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": "512"}))
    assert "'max_position_embeddings' expected int, got str" in refusal(folder)
    assert "weights" not in refusal(folder)


def test_a_command_never_asks_whether_to_run_code(folder: Path) -> None:
    proof = wants_code(folder)
    commands = [["chat", "--model", str(folder), "hello"], ["plan", "--chat-model", str(folder), "--topology", "cpu:1"]]
    script = f"from hfjax_app.__main__ import main\nprint([main(command) for command in {commands!r}])"
    result = subprocess.run(
        [sys.executable, "-c", script], input="y\ny\n", cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    assert result.stdout.endswith("[1, 1]\n"), result.stderr
    assert "[y/N]" not in result.stdout
    assert result.stderr.count(f"error: model {str(folder)!r} needs code of its own") == len(commands)
    assert not proof.exists()


def test_a_missing_path() -> None:
    message = refusal(Path("/no/such/folder"))
    assert "there is no such folder" in message
