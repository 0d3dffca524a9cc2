"""The commands in a shell: stdout, stderr, and the exit status.

Most run in this process, where the models' libraries are loaded already; tests of silence, pipes and Ctrl-C start a new
process.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from hfjax_app.__main__ import main
from hfjax_app.chat import SamplingParams
from hfjax_app.images import ImageGenerator, ImageStep, Picture, Waiting
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.settings import Settings
from tests.chat.conftest import make_model, make_tokenizer
from tests.conftest import ctrl_c_is_heard
from tests.images.pipelines import stable_diffusion as make_pipeline
from tests.sentiment.test_classifier import save as save_classifier

pytestmark = pytest.mark.usefixtures("quick_compiler")

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "hfjax_app"]
PIPE = 4096  # bytes that a process may write before its reader reads


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def pipeline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    make_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: exit status, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # from argparse
            status = ended.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def refused(run: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must be refused as the user's fault: nothing on stdout, one line on stderr, status 2."""

    def refused(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return refused


# --- help


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([name] for name in ("serve", "chat", "sentiment", "image", "plan", "fetch", "compile", "selftest", "ladder")),
    ],
)
def test_help_explains_and_shows_an_example(command: list[str], run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run(*command, "--help")
    assert (status, err) == (0, "")
    assert "exit status" in out
    if command:
        assert f"python -m hfjax_app {command[0]}" in out.split("examples:")[1]


def test_help_names_every_setting_and_the_defaults(run: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = run("serve", "--help")
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in out
        assert f"HFJAX_{name.upper()}" in out
    _, out, _ = run("chat", "--help")
    shown = {name: float(value) for name, value in re.findall(r"--([a-z-]+) \w\s[^-]*?\(default:\s+([\d.]+)\)", out)}
    params = SamplingParams()
    assert shown["max-tokens"] == params.max_tokens
    assert shown["temperature"] == params.temperature
    assert shown["top-p"] == params.top_p
    assert shown["top-k"] == params.top_k
    assert shown["min-p"] == params.min_p
    assert shown["repetition-penalty"] == params.repetition_penalty


def test_help_loads_no_model_library() -> None:
    """`--help` answers at once, because jax, torch and gradio are imported only by the commands that need them."""
    script = (
        "import sys\nfrom hfjax_app.__main__ import main\n"
        "try: main(['chat', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'torch', 'transformers', 'diffusers', 'gradio'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.endswith("\n[]\n")


def test_a_refusal_imports_nothing_that_computes(tmp_path: Path) -> None:
    """Those imports take seconds, and this refusal depends on the command's arguments only."""
    requests = [["chat", ""], ["sentiment", ""], ["image", "", "--out", str(tmp_path / "x.png")]]
    script = (
        "import sys\nfrom hfjax_app.__main__ import main\n"
        f"print([main(request) for request in {requests!r}])\n"
        "print({'jax', 'torch', 'transformers', 'diffusers'} & {*sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[2, 2, 2]\nset()\n"


def test_no_command_and_an_unknown_one(refused: Callable[..., str]) -> None:
    assert "COMMAND" in refused()
    assert "invalid choice" in refused("paint")


# --- chat


def test_chat_prints_the_answer_and_its_stats(chat_folder: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--context", 256, "--max-tokens", 9, "--temperature", 0, "--stats")
    status, out, err = run("chat", "What is it?", "--model", chat_folder, *options)
    assert status == 0
    assert out.endswith("\n")
    assert out.strip()
    assert err.count("\n") == 1
    stats = json.loads(err)
    assert (stats["tokens"], stats["finish_reason"]) == (9, "length")
    assert stats["ttft_s"] > 0
    assert stats["tokens_per_s"] > 0


def test_a_seed_decides_the_answer(chat_folder: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    def answer(seed: int) -> str:
        options = ("--max-tokens", 20, "--temperature", 2, "--top-p", 0.95, "--top-k", 50, "--min-p", 0.01)
        model = ("--model", chat_folder, "--context", 256)
        status, out, _ = run("chat", "Hello", *model, "--seed", seed, *options)
        assert status == 0
        return out

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--temperature", "nan", "temperature = nan"),
        ("--temperature", "inf", "temperature = inf"),
        ("--temperature", "-1", "from 0 to 10"),
        ("--temperature", "hot", "--temperature"),
        ("--top-p", "0", "top-p = 0.0"),
        ("--top-p", "2", "at most 1"),
        ("--top-k", "-1", "top-k = -1"),
        ("--min-p", "nan", "min-p = nan"),
        ("--repetition-penalty", "0", "repetition penalty = 0.0"),
        ("--max-tokens", "0", "max tokens = 0"),
        ("--max-tokens", "-5", "at least 1"),
        ("--seed", "-1", "seed = -1"),
        ("--seed", str(2**64), "2^64 - 1"),
        ("--seed", "1.5", "--seed"),
        ("--context", "1", "context = 1"),
    ],
)
def test_chat_refuses_numbers_before_a_model_is_loaded(
    option: str, value: str, says: str, refused: Callable[..., str]
) -> None:
    """The model does not exist: if it were loaded first, the message would be about that."""
    assert says in refused("chat", "Hello", "--model", "/no/such/model", option, value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("a" * 20_001, "at most 20,000"),
        ("a\0b", "NUL"),
        ("a\udc80b", "surrogate"),
    ],
    ids=["empty", "blank", "long", "NUL", "surrogate"],
)
def test_chat_refuses_text_before_a_model_is_loaded(text: str, says: str, refused: Callable[..., str]) -> None:
    assert says in refused("chat", text, "--model", "/no/such/model")


def test_chat_refuses_values_that_depend_on_the_model(
    chat_folder: Path, refused: Callable[..., str], compilations: Callable
) -> None:
    """Before anything is compiled."""
    options = ("--model", chat_folder, "--context", 128)
    with compilations() as seen:
        assert "at most 128" in refused("chat", "Hi", *options, "--max-tokens", 10**9)
        assert "tokens" in refused("chat", "word " * 3000, *options)
    assert seen == []


def test_a_model_that_can_not_be_loaded_is_status_1(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for command in (["chat", "Hi"], ["sentiment", "Hi"], ["image", "a circle", "--out", tmp_path / "out.png"]):
        for model in ("/no/such/model", tmp_path):
            status, out, err = run(*command, "--model", model)
            assert (status, out) == (1, "")
            assert err.startswith(f"error: model {'folder ' if model == tmp_path else ''}{str(model)!r}")
            assert err.count("\n") == 1


# --- sentiment


def test_sentiment_prints_a_json_line_for_each_text(
    classifier_folder: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    texts = ["w1 w2 w3", "ein schöner w4 \N{SNOWMAN}\nw5"]
    status, out, err = run("sentiment", *texts, "--model", classifier_folder)
    assert (status, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == texts
    for line in lines:
        assert set(line) == {"text", "label", "scores"}
        assert set(line["scores"]) == {"negative", "neutral", "positive"}
        assert sum(line["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert line["scores"][line["label"]] == max(line["scores"].values())


def test_sentiment_refuses_text_before_a_model_is_loaded(refused: Callable[..., str]) -> None:
    for text, says in [("", "empty"), ("a" * 60_001, "at most 60,000"), ("a\0", "NUL"), ("\ud800", "surrogate")]:
        assert says in refused("sentiment", "fine", text, "--model", "/no/such/model")


# --- image


def test_image_writes_the_picture_and_names_its_seed(
    pipeline_folder: Path, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    out_path = tmp_path / "out.png"
    arguments = (
        "image",
        "a circle",
        "--model",
        pipeline_folder,
        "--steps",
        3,
        "--guidance-scale",
        3,
        "--out",
        out_path,
    )
    status, out, err = run(*arguments)
    assert status == 0
    assert "3/3" in err
    seed = re.fullmatch(rf"{re.escape(str(out_path))} \(seed (\d+)\)\n", out)[1]
    picture = Image.open(out_path).tobytes()
    assert f"Seed: {seed}" in Image.open(out_path).info["parameters"]
    assert run(*arguments, "--seed", seed)[0] == 0
    assert Image.open(out_path).tobytes() == picture


def test_image_waits_as_long_as_another_size_compiles(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waiting message, after half a second, was treated as the first step: AttributeError."""

    def generate(*args: Any, **options: Any) -> Iterator[Any]:
        for seconds in (3, 2, 1):
            yield Waiting(reason=f"40 x 32 compiles about {seconds} s first")
        parameters = GenerationParameters(values={"prompt": "a", "negative_prompt": "", "width": 1, "height": 1})
        picture = Picture(seed=7, pixels=np.zeros((1, 1, 3), np.float32), latents=None, parameters=parameters)
        yield ImageStep(step=1, steps=1, seconds=1, pictures=(picture,), show=list, notice=None)

    generator = SimpleNamespace(generate=generate)
    monkeypatch.setattr(ImageGenerator, "from_pretrained", lambda *args, **options: generator)
    out_path = tmp_path / "out.png"
    status, out, err = run("image", "a circle", "--width", 40, "--out", out_path)
    assert (status, out) == (0, f"{out_path} (seed 7)\n"), err
    assert err.count("compiles about") == 1
    assert Image.open(out_path).size == (1, 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("out.txt", "must end in one of .png"),
        ("out", "must end in one of .png"),
        ("missing/out.png", "there is no folder"),
        ("folder.png", "can't be written"),
        ("file.txt/out.png", "there is no folder"),
    ],
)
def test_image_refuses_an_out_before_a_model_is_loaded(
    name: str, says: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file.txt").touch()
    message = refused("image", "a circle", "--model", "/no/such/model", "--out", tmp_path / name)
    assert says in message
    assert name in message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a circle", "--steps", "1000000000"], "steps = 1000000000"),
        (["a circle", "--steps", "0"], "from 1 to 100"),
        (["a circle", "--guidance-scale", "nan", "--seed", "3"], "nan"),
        (["a circle", "--seed", "-1"], "seed = -1"),
        (["a circle", "--negative-prompt", "a\0"], "NUL"),
        ([" "], "prompt is empty"),
    ],
)
def test_image_refuses_before_a_model_is_loaded(
    arguments: list[str], says: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert says in refused("image", *arguments, "--model", "/no/such/model", "--out", tmp_path / "out.png")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a circle", "--scheduler", "best"], "scheduler = 'best': must be one of DDIM"),
        (["a circle", "--width", "50"], "width = 50: must be a multiple of 8"),
    ],
)
def test_image_refuses(
    arguments: list[str], says: str, pipeline_folder: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    out_path = tmp_path / "out.png"
    assert says in refused("image", *arguments, "--model", pipeline_folder, "--out", out_path)
    assert not out_path.exists()


# --- settings and unexpected errors


def test_a_misspelt_setting_is_refused_by_every_command(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HFJAX_CHATMODEL", "x")
    for command in (["serve"], ["chat", "Hi"], ["sentiment", "Hi"], ["image", "x", "--out", tmp_path / "x.png"]):
        assert "HFJAX_CHATMODEL" in refused(*command)


def test_serve_refuses_settings(refused: Callable[..., str]) -> None:
    assert "port = '65536'" in refused("serve", "--port", 65536)
    assert "slots = '0'" in refused("serve", "--slots", 0)


def test_serve_on_a_port_that_is_taken(run: Callable[..., tuple[int, str, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = run("serve", "--port", port)
    assert status == 1
    assert err.startswith(f"error: port {port} ")
    assert "taken" in err
    assert err.count("\n") == 1


def test_an_unexpected_error_is_one_line_and_traceback_shows_where(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("hfjax_app.chat.engine.llm_engine.empty_model", broken)
    assert run("chat", "Hi") == (1, "", "error: ZeroDivisionError: two lines (--traceback shows where)\n")
    with pytest.raises(ZeroDivisionError):
        main(["chat", "Hi", "--traceback"])


# --- a process of its own


def test_a_process_shows_the_answer_and_nothing_else(chat_folder: Path) -> None:
    """No loading bar, warning or log line of any library, neither on stdout nor on stderr."""
    options = ["--model", str(chat_folder), "--context", "256", "--max-tokens", "5", "--temperature", "0"]
    result = subprocess.run([*COMMAND, "chat", "What is it?", *options], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command whose answer of long words is longer than PIPE, so that it can't end before its reader has read on."""
    folder = tmp_path_factory.mktemp("endless")
    make_model("llama").save_pretrained(folder)
    words = Tokenizer(WordLevel({f"{number:080}": number for number in range(512)}, unk_token=f"{1:080}"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"  # no token ends an answer
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template).save_pretrained(folder)
    return [*COMMAND, "chat", "Hello", "--model", str(folder), "--context", "256", "--max-tokens", "200"]


def test_ctrl_c_ends_quietly(endless: list[str]) -> None:
    with ctrl_c_is_heard():
        process = subprocess.Popen(endless, cwd=ROOT, pipesize=PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=200)
    assert (process.returncode, stderr) == (130, b"")


def test_a_closed_pipe_ends_it_quietly(endless: list[str]) -> None:
    """As in `... chat ... | head -c 1`."""
    with subprocess.Popen(endless, cwd=ROOT, pipesize=PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        stderr = process.stderr.read()
        process.wait(timeout=200)
    assert (process.returncode, stderr) == (141, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_encoding_lacks_are_escaped(encoding: str) -> None:
    code = "from hfjax_app import console; console.write_anything(); print('a \\u2764'); print('and on')"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert ended.stdout.splitlines() == [rb"a \u2764", b"and on"]


def test_a_closed_stdout_is_no_failure() -> None:
    """As with `>&-` in a shell: sys.stdout is None then."""
    command = [
        sys.executable,
        "-c",
        "import sys; from hfjax_app.__main__ import main; sys.exit(main(['plan', '--help']))",
    ]
    assert subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, capture_output=True).returncode == 0
