"""All models in one plan: image and sentiment programs from configs alone, sums, and models that can't run."""

import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DistilBertConfig, LlamaConfig, LlamaForCausalLM, Qwen3VLConfig

from hfjax_app.__main__ import main
from hfjax_app.chat import ChatEngine
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.topology import _NO_TPU
from tests.chat.conftest import make_model, make_tokenizer
from tests.chat.vision.checkpoints import checkpoint
from tests.conftest import quickly_compiled
from tests.images.pipelines import stable_diffusion
from tests.planning.stable_diffusion_2 import TEXT_PARAMETERS, UNET_PARAMETERS, VAE_PARAMETERS, save_configs
from tests.sentiment.conftest import CONFIG, save, word_tokenizer

ROOT = Path(__file__).parents[2]
MIB, GIB = 1 << 20, 1 << 30

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


@pytest.fixture
def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, Any, str]]]:
    """Runs the command in this process: exit status, output as JSON or text, stderr."""
    for name in ("JAX_PLATFORMS", "JAX_ENABLE_COMPILATION_CACHE", "XLA_FLAGS", "LIBTPU_INIT_ARGS", *_NO_TPU):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that the command's changes are undone

    def plan(*arguments: object) -> tuple[int, Any, str]:
        status = main(["plan", "--topology", "cpu:1", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, json.loads(captured.out) if "--json" in arguments else captured.out, captured.err

    with quickly_compiled():  # not for on_a_tpu, which compiles as for serving
        yield plan


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models without their weights."""
    image, sentiment = tmp_path_factory.mktemp("image"), tmp_path_factory.mktemp("sentiment")
    stable_diffusion().save_pretrained(image)
    save(sentiment, config=DistilBertConfig(**{**CONFIG.to_dict(), "max_position_embeddings": 32}))
    for folder in (image, sentiment):
        for file in folder.rglob("*.safetensors"):
            file.unlink()
    return {"image": image, "sentiment": sentiment}


def test_configs_alone_are_enough(plan: Callable[..., tuple[int, Any, str]], folders: dict[str, Path]) -> None:
    chosen = [option for kind, folder in folders.items() for option in (f"--{kind}-model", folder)]
    status, found, _ = plan(*chosen, "--json")
    assert (status, found["fits"], found["advice"], found["decode_floor"]) == (0, None, None, None)
    assert "chat" not in found
    names = {kind: [program["name"] for program in found[kind]["programs"]] for kind in folders}
    drawing = ["encode_prompt", "denoise_row", "denoise_follow", "decode_latents", "encode_picture"]
    assert names["image"] == [*drawing, "denoise_long_row", "denoise_long_follow"]
    classify = [["classify_1x32", "classify_1x16"], ["classify_32x16", "classify_16x32"]]
    assert names["sentiment"] == [*classify[0], "explain_32x32", "explain_32x16", *classify[1]]
    for kind in folders:
        looked = found["preflight"][kind]
        assert (looked["supported"], looked["reason"], looked["gated"]) == (True, None, False)
        assert looked["bytes"] >= 4 * looked["parameters"] > 0
        assert found[kind]["resident"] >= found[kind]["weights"]
        assert all(program["constant"] <= MIB for program in found[kind]["programs"])
    peaks = [found[k]["resident"] + max(p["temporary"] for p in found[k]["programs"]) for k in folders]
    assert found["peak_bytes_per_device"] == sum(peaks)


def test_a_context_longer_than_the_positions_is_refused(
    plan: Callable[..., tuple[int, Any, str]], compilations: Callable, tmp_path: Path
) -> None:
    LlamaConfig(max_position_embeddings=131_072, num_hidden_layers=1).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with compilations() as seen:
        status, out, log = plan("--chat-model", tmp_path, "--context", 200_000)
    assert (status, out) == (2, "")
    assert log == "error: context = 200000: this model has 131072 positions\n"
    assert seen == []


def test_a_config_without_a_tokenizer_is_planned(plan: Callable[..., tuple[int, Any, str]], tmp_path: Path) -> None:
    """It was refused for missing weights, which no plan reads. transformers makes a tokenizer for some classes."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaConfig(vocab_size=512, eos_token_id=2, **sizes).save_pretrained(tmp_path / "chat")
    config = {
        **CONFIG.to_dict(),
        "max_position_embeddings": 32,
        "architectures": ["DistilBertForSequenceClassification"],
    }
    DistilBertConfig(**config).save_pretrained(tmp_path / "sentiment")
    assert [file.name for file in tmp_path.rglob("*.*")] == ["config.json"] * 2
    chosen = [option for kind in ("chat", "sentiment") for option in (f"--{kind}-model", tmp_path / kind)]
    status, text, log = plan(*chosen, "--slots", 1, "--context", 64)
    assert status == 0, log
    assert text.count("no tokenizer here") == 2
    assert "chat template: unknown; end tokens: 2" in text
    assert "classify_16x32" in text


def test_a_vision_tower_is_counted(plan: Callable[..., tuple[int, Any, str]], tmp_path: Path) -> None:
    """Its programs too, where the checkpoint's image processor tells the sizes of pictures."""
    checkpoint("smolvlm", tmp_path / "whole")
    (tmp_path / "config").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "config")
    found, says = {}, {}
    for name in ("whole", "config"):
        asked = ("--chat-model", tmp_path / name, "--slots", 1, "--context", 64)
        found[name], says[name] = plan(*asked, "--json")[1], plan(*asked)[1]
    facts = {name: each["preflight"]["chat"] for name, each in found.items()}
    assert facts["whole"]["tower"] == facts["config"]["tower"] > 0
    assert facts["whole"]["bytes"] == facts["config"]["bytes"]
    assert (facts["whole"]["pictures"], facts["config"]["pictures"]) == (["56x56"], [])
    programs = {name: {program["name"] for program in each["chat"]["programs"]} for name, each in found.items()}
    assert programs["whole"] - programs["config"] == {"chat_vision_56x56", "chat_picture_16_16"}
    assert "on each device; sizes: 1" in says["whole"]
    assert "sizes: by its image processor, which is not here" in says["config"]


def test_one_cpu_keeps_weights_in_bfloat16_as_the_app_does(
    plan: Callable[..., tuple[int, Any, str]], tmp_path: Path
) -> None:
    """The plan has the same bytes as the loaded model. All weights are float32 on request, as in the app."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM._from_config(LlamaConfig(vocab_size=512, **sizes), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    for dtype, words in {"auto": "bfloat16, computed in float32", "float32": "float32"}.items():
        size = ("--slots", 1, "--context", 64)
        status, found, _ = plan("--chat-model", tmp_path, "--dtype", dtype, *size, "--json")
        engine = ChatEngine.from_pretrained(tmp_path, slots=1, context=64, dtype=dtype)
        assert status == 0
        assert found["preflight"]["chat"]["dtype"] == words
        assert found["chat"]["weights"] == sum(weight.nbytes for weight in engine.runner.weights.values())


def test_the_text_says_which_figures_are_arithmetic(
    plan: Callable[..., tuple[int, Any, str]], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable may name the model."""
    monkeypatch.delenv("HFJAX_CHAT_MODEL")
    monkeypatch.setenv("HFJAX_SENTIMENT_MODEL", str(folders["sentiment"]))
    status, text, log = plan()
    assert status == 0
    model = f"sentiment model {folders['sentiment']}"
    assert text.startswith(f"{model}: DistilBertForSequenceClassification is supported\n")
    for words in (
        "gated: no",
        "classify_16x32",
        "sentiment: weights 0.000",
        "figures are the compiler's",
        "arithmetic",
    ):
        assert words in text
    assert "6 of 6: classify_16x32, compiled in" in log
    assert "chat" not in log


def test_a_model_that_can_not_run_is_named_and_nothing_is_compiled(
    plan: Callable[..., tuple[int, Any, str]], folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["sentiment"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "problem_type": "regression"}))
    status, found, log = plan("--image-model", folders["image"], "--sentiment-model", tmp_path, "--json")
    assert (status, found["fits"], found["peak_bytes_per_device"]) == (1, None, None)
    assert found["preflight"]["image"]["supported"] is True
    assert found["preflight"]["sentiment"]["supported"] is False
    assert "is a regression" in found["preflight"]["sentiment"]["reason"]
    assert log.startswith("error: DistilBertForSequenceClassification is a regression")
    assert log.count("\n") == 1


def test_an_error_of_a_library_is_the_reason_why_a_model_can_not_run(
    plan: Callable[..., tuple[int, Any, str]], folders: dict[str, Path], tmp_path: Path
) -> None:
    """It ended the command with a traceback, without a report on the other models."""
    shutil.copytree(folders["sentiment"], tmp_path, dirs_exist_ok=True)
    word_tokenizer(-1).save_pretrained(tmp_path)
    status, found, log = plan("--image-model", folders["image"], "--sentiment-model", tmp_path, "--json")
    assert status == 1
    assert found["preflight"]["image"]["supported"] is True
    assert found["preflight"]["sentiment"]["reason"].startswith("OverflowError: ")
    assert log.startswith("error: OverflowError: ")
    assert log.count("\n") == 1


def test_a_component_of_a_pipeline_is_never_remote_code(
    plan: Callable[..., tuple[int, Any, str]], folders: dict[str, Path], tmp_path: Path
) -> None:
    """model_index.json names classes of libraries; only networks of diffusers and transformers are built."""
    shutil.copytree(folders["image"], tmp_path, dirs_exist_ok=True)
    index = json.loads((tmp_path / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, "unet": ["subprocess", "Popen"]}))
    status, text, log = plan("--image-model", tmp_path)
    assert status == 1
    assert text == f"image model {tmp_path}: not supported\n"
    assert log.startswith(f"error: model '{tmp_path}' can't be made from its configs")
    assert log.count("\n") == 1


@pytest.mark.parametrize(("width", "would_fit"), [(32, "v6e:1x1"), (20_480, "v6e:1x1")])
def test_models_that_do_not_fit_exit_1_with_advice(
    width: int,
    would_fit: str,
    plan: Callable[..., tuple[int, Any, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler refuses a program although the weights fit; for 19 GiB of weights on one chip it is not asked."""
    import jax

    def refuse(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nmore")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    monkeypatch.setattr("hfjax_app.planning.together.devices", lambda topology: jax.devices()[:1])
    sizes = {"dim": width, "hidden_dim": 4 * width, "n_layers": 1, "max_position_embeddings": 32}
    config = {**CONFIG.to_dict(), **sizes, "architectures": ["DistilBertForSequenceClassification"]}
    DistilBertConfig(**config).save_pretrained(tmp_path)
    status, found, log = plan("--topology", "v5e:1x1", "--sentiment-model", tmp_path, "--json")
    assert (status, found["fits"], found["advice"]["topology"]) == (1, False, would_fit)
    if width == 32:
        assert found["sentiment"]["too_large"].startswith("the compiler refuses classify_1x32: Ran out of memory")
    else:  # arithmetic is enough
        assert "sentiment" not in found
    assert log == f"error: sentiment model '{tmp_path}' does not fit v5e:1x1; would fit: topology {would_fit}\n"


def on_a_tpu(topology: str, *arguments: object, status: int = 0) -> dict[str, Any]:
    """The command's output from a new process, in which libtpu can be loaded."""
    command = [sys.executable, "-m", "hfjax_app", "plan", "--topology", topology, "--json", *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == status, result.stderr
    return json.loads(result.stdout)


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x2", "v6e:1x1"])
def test_stable_diffusion_2_compiles_for_a_tpu(topology: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """512x512: the text encoder, the UNet on a guidance pair, the autoencoder; beside a small classifier."""
    save_configs(tmp_path / "image")
    found = on_a_tpu(topology, "--image-model", tmp_path / "image", "--sentiment-model", folders["sentiment"])
    assert found["fits"] is True
    assert found["preflight"]["image"]["parameters"] == UNET_PARAMETERS + VAE_PARAMETERS + TEXT_PARAMETERS
    programs = {program["name"]: program for program in found["image"]["programs"]}
    assert list(programs) == ["encode_prompt", "denoise", "decode_latents", "encode_picture"]
    assert all(program["constant"] <= MIB for program in programs.values())
    assert found["preflight"]["image"]["dtype"] == "bfloat16"
    assert 2 * UNET_PARAMETERS <= programs["denoise"]["arguments"] < 2.2 * UNET_PARAMETERS
    assert 2 * TEXT_PARAMETERS <= programs["encode_prompt"]["arguments"] < 2.2 * TEXT_PARAMETERS
    # Activations are moved for their norms (12 MB), but no kernels of the deep layers.
    assert programs["denoise"]["moved"] < 2 * 1280 * 1280 * 3 * 3
    assert programs["denoise"]["in_place"] >= 3 * 4 * 4 * 64 * 64
    assert found["peak_bytes_per_device"] < 6 * GIB


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(3600)
def test_a_plan_that_the_compiler_refuses_gets_advice_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of 16 GiB, of which a program of 8 slots copies half: the compiler is not asked, and agrees to 8."""
    monkeypatch.setenv("JAX_EXEC_TIME_OPTIMIZATION_EFFORT", "-1.0")  # the same memory, less compile time
    LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=64,
        num_key_value_heads=64,
        head_dim=128,
        vocab_size=512,
        max_position_embeddings=16384,
    ).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    options = ("--chat-model", tmp_path, "--context", 16384)
    found = on_a_tpu("v5e:1x1", *options, "--slots", 16, status=1)
    assert (found["fits"], "chat" in found) == (False, False)
    advice = {"int8": False, "slots": 9, "context": 10240, "topology_with_int8": None, "topology": "v6e:1x1"}
    assert found["advice"] == advice
    advised = on_a_tpu("v5e:1x1", *options, "--slots", found["advice"]["slots"])
    assert advised["fits"] is True
    decoding = max(p["temporary"] for p in advised["chat"]["programs"] if p["name"].startswith("chat_decode"))
    assert decoding == pytest.approx(advised["chat"]["need"]["copied"], rel=0.05)


def test_a_quick_plan_tells_of_all_topologies(plan: Callable[..., tuple[int, Any, str]], tmp_path: Path) -> None:
    """8 billion parameters do not fit one v5e chip; int8, which costs less than any other chips, does."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    LlamaConfig(vocab_size=128256, num_key_value_heads=8, max_position_embeddings=8192, **sizes).save_pretrained(
        tmp_path
    )
    asked = ("--chat-model", tmp_path, "--topology", "v5litepod-1", "--slots", 8, "--context", 2048, "--quick")
    status, found, log = plan(*asked, "--price", "v5e=1.2,v6e=2.7", "--json")
    assert (status, found["topology"], found["fits"], "chat" in found) == (1, "v5e:1x1", False, False)
    assert log.endswith("does not fit v5e:1x1; would fit: quantize = int8 or context = 64 or topology v6e:1x1\n")
    ways = [(each["topology"], each["quantize"]) for each in found["topologies"]]
    assert len(ways) == len(set(ways)) == 18
    rows = dict(zip(ways, found["topologies"], strict=True))
    alone, half = rows["v5e:1x1", "none"], rows["v5e:1x1", "int8"]
    assert (alone["fits"], alone["slots"], alone["context"], alone["per_million"]) == (False, 0, 64, None)
    assert half["fits"] is True
    assert half["slots"] >= 8
    assert half["context"] >= 2048
    assert 1.9 < half["one_user"] / alone["one_user"] < 2
    assert half["full"] < half["half_full"] < 8 * half["one_user"]
    assert half["per_hour"] == 1.2
    assert half["per_million"] == pytest.approx(1.2 / 3600 / half["half_full"] * 1e6)
    # 7 billion multiply-adds for each of 1,000 tokens
    assert alone["first_token"] == pytest.approx(2 * 7e9 * 1000 / 197e12, rel=0.02)
    assert rows["v5e:2x4", "none"]["context"] == 8192
    status, text, log = plan(*asked)
    assert "does not fit, by arithmetic" in text
    assert "would fit" not in text, "a refusal is printed once"
    assert log.count("would fit") == 1


def test_ctrl_c_keeps_what_is_known(
    plan: Callable[..., tuple[int, Any, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the first program is ready. The process ends at once, with everything written."""
    make_model("llama").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    stdout = io.BytesIO()
    written: list[bytes] = []

    def ready(report: ProgramReport, number: str) -> None:
        assert number.startswith("1 of ")
        signal.raise_signal(signal.SIGINT)

    def end(status: int) -> None:
        written.append(stdout.getvalue())  # what was flushed
        raise SystemExit(status)

    monkeypatch.setattr("hfjax_app.__main__._progress", ready)
    monkeypatch.setattr("hfjax_app.__main__.os._exit", end)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout))
    with pytest.raises(SystemExit) as ended:
        plan("--chat-model", tmp_path, "--slots", 1, "--context", 64)
    assert ended.value.code == 130
    [text] = [each.decode() for each in written]
    assert "LlamaForCausalLM is supported" in text
    assert "\nchat_prefill_64x64 " in text
    assert "chat_score" not in text
    assert text.endswith("interrupted: the other programs were not compiled\n")


@pytest.mark.slow
def test_ctrl_c_ends_a_process_that_plans() -> None:
    command = [sys.executable, "-m", "hfjax_app", "plan", "--topology", "cpu:1", "--slots", "1", "--context", "64"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith("1 of ")
        process.send_signal(signal.SIGINT)  # its other programs take seconds
        text, log = process.communicate(timeout=600)
    assert process.returncode == 130, log
    assert "\nchat_prefill_64x64 " in text
    assert text.endswith("interrupted: the other programs were not compiled\n")


def test_more_devices_than_heads_copy_the_cache(plan: Callable[..., tuple[int, Any, str]], tmp_path: Path) -> None:
    """Four key-value heads are split over four devices; each of eight would hold all."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8}
    LlamaConfig(vocab_size=512, num_key_value_heads=4, **sizes).save_pretrained(tmp_path)
    status, text, log = plan("--chat-model", tmp_path, "--topology", "v5e:1x1", "--quick")
    assert status == 0, log
    assert (
        "on v4:2x2x1, v5e:2x4, v6e:2x4, tpu7x:2x2x1 each device holds the whole KV cache of layers with 4 heads" in text
    )


@pytest.mark.usefixtures("plan")
def test_a_folder_of_configs_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each: the cheapest chips that are enough, or why the model can't run."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    LlamaConfig(vocab_size=128256, num_key_value_heads=8, **sizes).save_pretrained(tmp_path / "eight")
    Qwen3VLConfig().save_pretrained(tmp_path / "seeing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "nobody"}')
    assert main(["plan", "--configs", str(tmp_path), "--slots", "8", "--context", "2048"]) == 0
    header, _, eight, other, seeing = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (header, eight, other, seeing)]
    assert len({len(row) for row in cells}) == 1
    assert cells[1][:4] == ["eight", "8.0 G", "", "v6e:1x1"]
    assert cells[1][5] == "v5e:1x1"
    assert cells[2][-1].startswith("model `other` is a nobody, which this transformers does not know")
    assert cells[3][2] == "yes"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "plan needs either --topology"),
        (["--topology", "v5e:1x1", "--configs", "."], "plan needs either --topology"),
        (["--configs", "/nowhere"], "no folder in it has a config.json"),
    ],
)
@pytest.mark.usefixtures("plan")
def test_what_to_plan_must_be_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert words in capsys.readouterr().err
