"""Whether a chat model computes on this machine what PyTorch computes on its CPU, and how fast a step is.

The served programs make answers, which `chat/torch_reference.py` compares.
"""

import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import jax

from hfjax_app import __version__
from hfjax_app.backends.budget import planner_for
from hfjax_app.backends.loaders import ChatLoader
from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.chat.sampling.params import MAX_BIASES, SamplingParams
from hfjax_app.chat.torch_reference import Agreement, compare, reference
from hfjax_app.embedded import resolve
from hfjax_app.errors import RequestRejected
from hfjax_app.planning import cycles
from hfjax_app.planning.outlook import decode_floor
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.topology import Topology, parse, topology_here
from hfjax_app.settings import Settings

PROMPTS = ("What is JAX?", "Once upon a time", "1, 2, 3, 4,")
PACKAGES = ("jax", "jaxlib", "libtpu", "torch", "torchax", "transformers")
ROUNDS = 3  # of each time


@dataclass(frozen=True, kw_only=True)
class Step:
    """The time of a decoding step in which so many users get a token.

    Args:
        users: their number.
        measured: milliseconds, from the first token of an answer to its last, the host's work included.
        estimate: milliseconds by the compiler's cost model; None: it has none for this device.
        floor: milliseconds by the chip's published figures; None: they are not known.
    """

    users: int
    measured: float
    estimate: float | None
    floor: float | None


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """The result of `self_test`.

    Args:
        machine: name -> value: the operating system, Python, the packages, the devices.
        model: as it was named.
        options: how it was served.
        start_s: seconds to load the model and its programs.
        programs: the programs in use.
        loaded: how many of them came from the bundle or from jax's cache.
        agreement: of tokens.
        steps: of one user, and of as many as there are slots.
    """

    machine: dict[str, str]
    model: str
    options: dict[str, str]
    start_s: float
    programs: int
    loaded: int
    agreement: Agreement
    steps: tuple[Step, ...]

    def as_text(self) -> str:
        """Markdown to paste into an issue."""
        found, lines = self.agreement, ["| | |", "| --- | --- |"]
        shown = {**self.machine, "model": self.model, **self.options}
        shown["start"] = f"{self.start_s:.1f} s; {self.loaded} of {self.programs} programs were compiled before"
        said = f"{found.equal} of {found.tokens} tokens are PyTorch's"
        if found.equal < found.tokens:
            verdict = "which is rounding" if found.holds else "TOO FAR: this machine computes something else"
            said += (
                f"; logits of the others are up to {found.largest:.3g} lower, {found.allowed:.3g} allowed: {verdict}"
            )
        shown["tokens"] = said
        lines += [f"| {name} | {value} |" for name, value in shown.items()]
        lines += ["", "| users | ms a step | compiler's estimate | floor |", "| ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {step.users} | {step.measured:.2f} | {_shown(step.estimate)} | {_shown(step.floor)} |"
            for step in self.steps
        ]
        return "\n".join(lines)


def _shown(milliseconds: float | None) -> str:
    return "unknown" if milliseconds is None else f"{milliseconds:.2f}"


class _Reports:
    """The reports of all programs, as a `Watcher`."""

    def __init__(self) -> None:
        self.made: list[ProgramReport] = []

    def expect(self, names: Sequence[str], count: int) -> None:
        """Nothing is shown of what comes."""

    def record(self, report: ProgramReport) -> None:
        self.made.append(report)


def self_test(settings: Settings, *, tokens: int, on_step: Callable[[str], None] = lambda step: None) -> SelfTest:
    """Load the chat model as the server would, and compare it with PyTorch.

    Args:
        settings: of the server.
        tokens: of each answer.
        on_step: called with what is done next, in words.

    Raises:
        RequestRejected: too few or too many tokens.
        ModelUnavailable: the model can't be served.
    """
    if not 2 <= tokens <= settings.context // 2:
        raise RequestRejected(f"tokens = {tokens}: 2 to {settings.context // 2}, half of the context")
    model = settings.chat_models[0]
    on_step(f"load {model} and its programs")
    began, reports = time.perf_counter(), _Reports()
    loader = ChatLoader(settings, whole=True)  # whose fastest programs are measured
    assistant = loader.load(model, reports)
    start_s = time.perf_counter() - began
    engine = assistant.engine
    try:
        # An end token would cut an answer short, so all but the first few may be chosen.
        ends = engine.end_tokens[:MAX_BIASES]
        params = SamplingParams(max_tokens=tokens, temperature=0.0, logit_bias=dict.fromkeys(ends, -100.0))
        prompts = [assistant.tokenize(text)[: settings.context - tokens] for text in PROMPTS]
        on_step(f"make {len(prompts)} answers of {tokens} tokens")
        answers = engine.generate(prompts, params)
        on_step("compare them with PyTorch's on the CPU, in float32")
        model_on_cpu = reference(resolve(model), settings.quantize)
        agreement = compare(model_on_cpu, prompts, answers, never=ends, dtype=engine.runner.arithmetic)
        on_step("measure steps")
        steps = _steps(settings, engine, prompts[0], params)
    finally:
        loader.stop(assistant)
    return SelfTest(
        machine=_machine(),
        model=model,
        options={name: str(getattr(settings, name)) for name in ("slots", "context", "dtype", "quantize")},
        start_s=start_s,
        programs=len(reports.made),
        loaded=sum(report.cached for report in reports.made),
        agreement=agreement,
        steps=tuple(steps),
    )


def _steps(settings: Settings, engine: ChatEngine, prompt: Sequence[int], params: SamplingParams) -> list[Step]:
    """Of one user and of all slots."""
    name, length = topology_here(), len(prompt) + params.max_tokens
    where = None if name is None else parse(name)
    planner = None
    if where is not None:
        planner = planner_for("chat", settings.chat_models[0], settings, "tpu", where.devices)
    found = []
    for users in dict.fromkeys((1, settings.slots)):
        estimate, floor = None, None
        if where is not None:
            estimate = _estimate(engine, users, length, where)
        if where is not None and isinstance(planner, ChatPlanner):
            sizes = {"slots": users, "length": length, "context": settings.context}
            use, cache = planner.use(where.devices), planner.estimate(where.devices).slot
            floor = decode_floor(use, cache, where, **sizes).seconds * 1e3
        measured = statistics.median(_milliseconds(engine, prompt, params, users) for _ in range(ROUNDS))
        found.append(Step(users=users, measured=measured, estimate=estimate, floor=floor))
    return found


def _milliseconds(engine: ChatEngine, prompt: Sequence[int], params: SamplingParams, users: int) -> float:
    """Of a step, from the moment when the last user has a first token."""
    streams = [engine.stream(prompt, params) for _ in range(users)]
    for stream in streams:
        next(stream)
    began = time.perf_counter()
    made = sum(1 for _ in streams[-1])
    steps = max(1, made - streams[-1].accepted_tokens)  # one that drafts makes several tokens
    seconds = time.perf_counter() - began
    for stream in streams:
        stream.close()
    return seconds * 1e3 / steps


def _estimate(engine: ChatEngine, users: int, length: int, where: Topology) -> float | None:
    """Milliseconds by the compiled program's text; None where the text or the chip's clock is unknown."""
    program, _ = engine.runner.programs.decode_of(users, length)
    chip = where.name.partition(":")[0]
    try:
        return cycles.seconds(cycles.estimate(program.as_text() or "", chip=chip).step, chip) * 1e3
    except RequestRejected:
        return None


def _machine() -> dict[str, str]:
    devices = jax.local_devices()
    packages = [f"hfjax_app {__version__}"]
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages.append(f"{name} {importlib.metadata.version(name)}")
    kind = "CPU" if devices[0].platform == "cpu" else devices[0].device_kind
    return {
        "devices": f"{len(devices)} x {kind}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(packages),
    }
