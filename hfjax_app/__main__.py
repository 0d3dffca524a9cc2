"""The commands serve, chat, sentiment, image, plan, fetch, compile, selftest and ladder.

Each checks its arguments before it imports jax and torch.

Results go to stdout, everything else to stderr. An error is one line. The exit status is 2 after a wrong request and 1
after any other error.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hfjax_app import console
from hfjax_app.arguments import IMAGE_SUFFIXES, KINDS, LADDER_PARTS, PLANNED, SERVED, Command, parser
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, RequestRejected
from hfjax_app.runtime.process import collect_seldom, prepare, runs_on_cpu
from hfjax_app.runtime.topology import NAMES, devices, parse, parse_prices, prepare_process
from hfjax_app.sentiment.interface import checked_texts
from hfjax_app.settings import Settings, load_settings, models_of

FETCH_TOLD_S = 0.25  # between two lines of progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parsed = parser(_COMMANDS).parse_args(arguments)
    try:
        console.quiet()
        console.write_anything()
        collect_seldom()
        parsed.command(parsed)
        sys.stdout.flush()
    except HfjaxError as error:
        return _failed(error, parsed.traceback, 2 if isinstance(error, RequestRejected) else 1)
    except BrokenPipeError:  # the reader of stdout has ended, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        return _failed(error, parsed.traceback, 1)
    return 0


def _failed(error: BaseException, traceback: bool, status: int) -> int:
    if traceback:
        raise error
    known = isinstance(error, HfjaxError | OSError)
    text = str(error) if known else f"{type(error).__name__}: {error} (--traceback shows where)"
    print("error:", " ".join(text.split()), file=sys.stderr)
    return status


def serve(arguments: argparse.Namespace) -> None:
    settings = load_settings(**{name: getattr(arguments, name) for name in Settings.model_fields})
    if not runs_on_cpu():
        prepare(settings.cache_dir)  # a machine that is paid for its chips must not serve without them
    from hfjax_app.backends import Backends
    from hfjax_app.server.server import launch

    launch(Backends(settings), settings)


def chat(arguments: argparse.Namespace) -> None:
    settings = load_settings(chat_model=arguments.model, context=arguments.context)
    model = settings.chat_models[0]
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    request = ChatRequest(  # refuses a wrong value before anything is loaded
        messages=[{"role": "user", "content": arguments.text}],
        system_prompt=arguments.system,
        sampling=SamplingParams.from_options({name: getattr(arguments, name) for name in names}),
    )

    from hfjax_app.backends.model_bundles import model_bundle
    from hfjax_app.chat import ChatAssistant, ChatEngine

    prepare(settings.cache_dir)
    engine = ChatEngine.from_pretrained(
        resolve(model),
        slots=1,
        context=settings.context,
        dtype=settings.dtype,
        quantize=settings.quantize,
        bundle=model_bundle("chat", model, settings.model_copy(update={"slots": 1})),
    )
    assistant = ChatAssistant(engine)
    for notice in assistant.notices:
        print(f"note: {notice}", file=sys.stderr)
    assistant.check(request)
    engine.start()
    try:
        # asyncio starts only here, because it delays Ctrl-C until a running computation has ended
        reply = asyncio.run(_printed(assistant.reply(request)))
    finally:
        assistant.stop()
    if arguments.stats:
        first = ("ttft_s", "tokens", "tokens_per_s", "prompt_tokens", "finish_reason")
        names = (*first, "drafted_tokens", "accepted_tokens")
        print(json.dumps({name: getattr(reply, name) for name in names}), file=sys.stderr)


async def _printed(replies: AsyncIterator[Any]) -> Any:
    """Print the answer as it grows, its reasoning to stderr, and return the last reply."""
    shown = reasoned = 0
    async for reply in replies:
        print(reply.reasoning[reasoned:], end="", file=sys.stderr, flush=True)
        if reply.reasoning and not shown and reply.text:
            print(f"\n(thought for {reply.reasoning_s:.1f} s)", file=sys.stderr, flush=True)
        print(reply.text[shown:], end="", flush=True)
        shown, reasoned = len(reply.text), len(reply.reasoning)
    print(flush=True)
    return reply


def sentiment(arguments: argparse.Namespace) -> None:
    settings = load_settings(sentiment_model=arguments.model)
    texts = checked_texts(arguments.texts)

    from hfjax_app.backends.model_bundles import model_bundle
    from hfjax_app.sentiment import SentimentClassifier

    prepare(settings.cache_dir)
    bundle = model_bundle("sentiment", settings.sentiment_model, settings)
    classifier = SentimentClassifier.from_pretrained(resolve(settings.sentiment_model), explains=False, bundle=bundle)
    for text, scores in zip(texts, classifier.classify(texts), strict=True):
        line = {"text": text, "label": max(scores, key=scores.__getitem__), "scores": scores}
        print(json.dumps(line, ensure_ascii=False), flush=True)


def image(arguments: argparse.Namespace) -> None:
    settings = load_settings(image_model=arguments.model)
    model = settings.image_models[0]
    out = _checked_out(arguments.out)
    from hfjax_app.images.request import OPTIONS, ImageRequest

    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    request = ImageRequest(**{name: value for name, value in options.items() if value is not None})

    from tqdm import tqdm

    from hfjax_app.backends.model_bundles import model_bundle
    from hfjax_app.images import ImageGenerator, Waiting
    from hfjax_app.images.networks import Storage

    prepare(settings.cache_dir)
    bundle = model_bundle("images", model, settings)
    storage = Storage(
        dtype=settings.dtype, quantize=settings.image_quantize, text_encoders=settings.image_text_encoders
    )
    generator = ImageGenerator.from_pretrained(resolve(model), storage=storage, bundle=bundle)
    with closing(generator.generate(request)) as moments:
        step = next(moments)
        if isinstance(step, Waiting):
            print(f"note: {step.reason}", file=sys.stderr)
        while isinstance(step, Waiting):  # repeated every half second; printed once
            step = next(moments)
        with tqdm(total=step.steps, initial=step.step, unit="step", disable=False) as bar:
            for moment in moments:
                assert not isinstance(moment, Waiting), "a request waits before its first step only"
                step = moment
                bar.update(step.step - bar.n)
    if step.notice is not None:
        print(f"note: {step.notice}", file=sys.stderr)
    [picture] = step.pictures
    if out.suffix.lower() == ".png":
        png = picture.png  # with its generation parameters inside
        assert png is not None, "the last step has pixels"
        out.write_bytes(png)
    else:
        assert picture.image is not None, "the last step has pixels"
        picture.image.save(out)
    print(f"{out} (seed {picture.seed})")


def plan(arguments: argparse.Namespace) -> None:
    settings, named = _planned_models(arguments)
    chosen = named or [("chat", settings.chat_models[0])]
    models = dict(chosen)
    if len(models) < len(chosen) and arguments.configs is None:
        raise RequestRejected("plan takes one model of each kind: plan the others one by one")
    if (arguments.topology is None) == (arguments.configs is None):
        raise RequestRejected("plan needs either --topology, for one model of each kind, or --configs, for many")
    if arguments.configs is not None and (arguments.json or any(getattr(arguments, f"{kind}_model") for kind in KINDS)):
        raise RequestRejected("--configs prints tables of the models in a folder: leave out --json and models")
    topology = parse(arguments.topology or NAMES[0])
    prices = parse_prices(arguments.price) if arguments.price else {}
    prepare_process(topology)  # before jax is imported
    from hfjax_app.planning.report import as_json, by_arithmetic, by_compiler
    from hfjax_app.planning.together import Together, survey

    options: dict[str, Any] = {
        "prices": prices,
        "sizes": settings.sizes,
        "slots": settings.slots,
        "context": settings.context,
        "dtype": settings.dtype,
        "quantize": settings.quantize,
        "image_quantize": settings.image_quantize,
        "image_text_encoders": settings.image_text_encoders,
    }
    if arguments.configs is not None:
        for line in survey(arguments.configs, **options):
            print(line, flush=True)
        return
    together = Together(models, topology, **options)
    report = together.by_arithmetic()
    if not arguments.json:
        print(by_arithmetic(report), flush=True)
    if not report.refusals and report.advice is None and not arguments.quick:
        report = together.compile(_progress)
        if not arguments.json and not report.refusals:
            print(f"\n{by_compiler(report)}", flush=True)
    if arguments.json:
        print(json.dumps(as_json(report)), flush=True)
    if report.interrupted:
        os._exit(130)  # 128 + SIGINT; a compiler in another thread would take minutes to end
    if report.refusals:
        raise ModelUnavailable("; ".join(report.refusals))
    if report.advice is not None:
        asked = f" with slots = {settings.slots} and context = {settings.context}" if "chat" in models else ""
        verb = "does" if len(models) == 1 else "do"
        raise ModelUnavailable(f"{report.names}{asked} {verb} not fit {topology.name}; would fit: {report.advice}")


def _progress(report: Any, number: str) -> None:
    print(f"{number}: {report.name}, compiled in {report.seconds:.1f} s", file=sys.stderr)


def compile_programs(arguments: argparse.Namespace) -> None:
    settings, named = _planned_models(arguments)
    models = named or [("chat", model) for model in settings.chat_models]
    topology = None if arguments.topology is None else parse(arguments.topology)
    if topology is not None:
        prepare_process(topology)  # before jax is imported

    folder = settings.cache_dir if arguments.out is None else arguments.out
    prepare(folder)
    import jax

    from hfjax_app.backends.model_bundles import compile_ahead
    from hfjax_app.runtime.program_report import ProgramReport

    compiled = []

    def kept(kind: str, model: str, report: ProgramReport) -> None:
        compiled.append(report)
        if arguments.json:
            line = {"kind": kind, "model": model, "name": report.name, "seconds": round(report.seconds, 3)}
            print(json.dumps(line), flush=True)
        else:
            print(f"{report.name}: compiled in {report.seconds:.1f} s", file=sys.stderr)

    found = jax.local_devices() if topology is None else devices(topology)
    count = compile_ahead(models, settings, found, on_kept=kept)
    if not arguments.json:
        start = "" if folder is None else f"; start the server with HFJAX_CACHE_DIR={folder}"
        print(f"{count} programs are ready, {len(compiled)} of them new{start}")


def fetch(arguments: argparse.Namespace) -> None:
    settings, named = _planned_models(arguments)
    platform, _, count = arguments.devices.partition(":")
    if platform not in ("cpu", "gpu", "tpu") or not count.isascii() or not count.isdigit() or not 0 < int(count) < 1e4:
        raise RequestRejected(f"--devices {arguments.devices}: cpu:N, gpu:N or tpu:N")
    os.environ["JAX_PLATFORMS"] = "cpu"  # the devices may serve already
    from hfjax_app.backends.model_loads import fetch_model

    told = 0.0

    def on_bytes(here: int, whole: int) -> None:
        nonlocal told
        if time.monotonic() > told + FETCH_TOLD_S or here == whole:
            told = time.monotonic()
            print(json.dumps({"stage": "downloading", "here": here, "whole": whole}), flush=True)

    def on_checked(found: dict[str, Any]) -> None:
        if arguments.json:
            print(json.dumps({"stage": "checked", **found}), flush=True)
        else:
            print(f"{found['architecture']}: {found['bytes'] / 2**30:.1f} GiB in memory", flush=True)

    for kind, model in named or [("chat", settings.chat_models[0])]:
        fetch_model(
            kind,
            model,
            settings,
            platform=platform,
            devices=int(count),
            free=arguments.free,
            on_checked=on_checked,
            on_bytes=on_bytes if arguments.json else None,
        )
        if not arguments.json:
            print(f"{kind} model {model}: here")


def self_test(arguments: argparse.Namespace) -> None:
    options = {name: getattr(arguments, name) for name in SERVED}
    settings = load_settings(chat_model=arguments.model, **options)

    prepare(settings.cache_dir)
    from hfjax_app.planning.self_test import self_test as tested

    result = tested(settings, tokens=arguments.tokens, on_step=lambda step: print(step, file=sys.stderr))
    print(json.dumps(asdict(result)) if arguments.json else result.as_text(), flush=True)
    if not result.agreement.holds:
        raise ModelUnavailable("the tokens are not those of PyTorch on the CPU: see the report")


def ladder(arguments: argparse.Namespace) -> None:
    settings = load_settings(
        chat_model=arguments.model, image_model=arguments.image_model, cache_dir=arguments.cache_dir
    )
    for name, least, most in (("tokens", 2, 512), ("steps", 1, 50), ("seconds", 1, 3600)):
        if not least <= (value := getattr(arguments, name)) <= most:
            raise RequestRejected(f"--{name} {value}: must be from {least} to {most}")
    from hfjax_app.ladder.climb import climb

    result = climb(
        [part for part in LADDER_PARTS if arguments.only is None or part in arguments.only],
        chat=settings.chat_models[0],
        images=settings.image_models[0],
        tokens=arguments.tokens,
        steps=arguments.steps,
        seconds=arguments.seconds,
        folder=settings.cache_dir,
    )
    if arguments.json:
        print(result.model_dump_json())


def _planned_models(arguments: argparse.Namespace) -> tuple[Settings, list[tuple[str, str]]]:
    """The settings, and the kind and name of each model that an option names, or without one a variable."""
    names = [f"{kind}_model" for kind in KINDS]
    options = {name: getattr(arguments, name, None) for name in (*names, *PLANNED, "cache_dir")}
    settings = load_settings(**options)
    named = {name for name in names if options[name] is not None} or settings.model_fields_set
    chosen = [kind for kind, name in zip(KINDS, names, strict=True) if name in named]
    return settings, [(kind, model) for kind in chosen for model in models_of(getattr(settings, f"{kind}_model"))]


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given; the others are left to the backend's defaults."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _checked_out(path: Path) -> Path:
    """The path, after a check that a picture can be written there; called before the picture is computed."""
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise RequestRejected(f"--out {path}: the name must end in one of {', '.join(IMAGE_SUFFIXES)}")
    if not path.parent.is_dir():
        raise RequestRejected(f"--out {path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RequestRejected(f"--out {path}: this file can't be written")
    return path


_COMMANDS: dict[str, Command] = {
    "serve": serve,
    "chat": chat,
    "sentiment": sentiment,
    "image": image,
    "plan": plan,
    "fetch": fetch,
    "compile": compile_programs,
    "selftest": self_test,
    "ladder": ladder,
}


if __name__ == "__main__":
    sys.exit(main())
