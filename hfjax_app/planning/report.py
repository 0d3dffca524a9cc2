"""A plan as text and as JSON, which say which figures are the compiler's and which are computed from shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hfjax_app.backends.budget import Advice
from hfjax_app.chat.memory import GIB
from hfjax_app.chat.plan import ChatPlan
from hfjax_app.planning.outlook import PROMPT, Floor, Outlook, PictureOutlook
from hfjax_app.runtime.model_plan import Facts, ModelPlan
from hfjax_app.runtime.topology import CHIPS, HOST_LINK, MARGIN, Topology

_TEMPLATES = {True: "yes", False: "none, messages are text to continue", None: "unknown"}
_GATED = {True: "yes, its licence must be accepted", False: "no", None: "unknown, the hub can't be asked"}


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """One model of a plan.

    Args:
        kind: "chat", "image" or "sentiment".
        name: as the user gave it.
        gated: whether a licence must be accepted first; None if the hub can't be reached.
        facts: from its config; None if the model can't be built from it.
        reason: why it can't run; None if no reason is known.
        plan: its compiled programs; None if this model or another one can't run.
    """

    kind: str
    name: str
    gated: bool | None
    facts: Facts | None
    reason: str | None
    plan: ModelPlan | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Models to be served together on some chips.

    Args:
        needed: bytes of each model on the first device, as far as shapes tell; empty if a model can't run.
        advice: what would fit; None if the models fit.
        floor: of the chat model's decoding step with full slots; None without a chat model and for CPUs.
        outlooks: the chat model on all topologies; empty where `floor` is None.
        pictures: the image model on all topologies; empty without one and for CPUs.
    """

    topology: Topology
    models: tuple[ModelReport, ...]
    needed: Mapping[str, int] = field(default_factory=dict)
    advice: Advice | None = None
    floor: Floor | None = None
    outlooks: tuple[Outlook, ...] = ()
    pictures: tuple[PictureOutlook, ...] = ()

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why models can't run, one line for each such model."""
        return tuple(model.reason for model in self.models if model.reason is not None)

    @property
    def plans(self) -> tuple[ModelPlan, ...]:
        """The plans of all models that have one."""
        return tuple(model.plan for model in self.models if model.plan is not None)

    @property
    def peak(self) -> int | None:
        """Bytes on the first chip, which holds a part of every model; None if not all were compiled.

        Models run in turns, but a dispatched program holds its temporary memory: the largest of each model counts.
        """
        whole = len(self.plans) == len(self.models) and not self.interrupted
        return sum(plan.peak for plan in self.plans) if whole else None

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped the compiler."""
        return any(plan.interrupted for plan in self.plans)

    @property
    def fits(self) -> bool | None:
        """Whether the models fit; None for CPUs and if a model can't run."""
        return None if self.refusals or self.topology.usable is None else self.advice is None

    @property
    def names(self) -> str:
        """The models as text: "chat model 'a' and image model 'b'"."""
        return " and ".join(f"{model.kind} model {model.name!r}" for model in self.models)


def as_json(report: Report) -> dict[str, Any]:
    floor, advice = report.floor, report.advice
    return {
        "topology": report.topology.name,
        "chips": report.topology.chips,
        "devices": report.topology.devices,
        "usable_bytes_per_device": report.topology.usable,
        "preflight": {
            model.kind: {
                "model": model.name,
                "supported": model.reason is None,
                "reason": model.reason,
                "gated": model.gated,
                **({} if model.facts is None else asdict(model.facts)),
            }
            for model in report.models
        },
        "needed_bytes_on_first_device": dict(report.needed),
        "topologies": [asdict(outlook) for outlook in report.outlooks],
        "picture_topologies": [asdict(outlook) for outlook in report.pictures],
        **{model.kind: _as_dict(model.plan) for model in report.models if model.plan is not None},
        "interrupted": report.interrupted,
        "peak_bytes_per_device": report.peak,
        "fits": report.fits,
        "advice": None if advice is None else asdict(advice),
        "decode_floor": None
        if floor is None
        else {**asdict(floor), "tokens_per_s_per_user": floor.per_user, "tokens_per_s_in_all": floor.in_all},
    }


def _as_dict(plan: ModelPlan) -> dict[str, Any]:
    """A plan's fields, with the keys that a chat model's memory has in the JSON report."""
    fields = asdict(plan)
    if isinstance(plan, ChatPlan):
        fields["need"] = fields.pop("memory")
        slot = fields["need"]["slot"]
        slot["rows"] = slot.pop("positions")
    return fields


def by_arithmetic(report: Report) -> str:
    """The first part of the text: facts, and what shapes tell."""
    lines = [line for model in report.models for line in _preflight(model)]
    if report.needed:
        lines += ["", *_arithmetic(report)]
    if report.outlooks:
        lines += ["", *_topologies(report.outlooks)]
    if report.pictures:
        lines += ["", *_pictures(report.pictures)]
    return "\n".join(lines)


def by_compiler(report: Report) -> str:
    """The second part: the compiler's figures."""
    lines = list(_programs(report))
    if report.peak is not None:
        lines += ["", *_summary(report, report.peak)]
    if report.interrupted:
        lines += ["interrupted: the other programs were not compiled"]
    return "\n".join(lines)


def _preflight(model: ModelReport) -> Iterator[str]:
    facts, kind = model.facts, f"{model.kind} model {model.name}"
    if model.reason is not None:
        yield f"{kind}: not supported"  # the reason is the command's error
    if facts is None:
        return
    if model.reason is None:
        yield f"{kind}: {facts.architecture} is supported"
    yield f"  {facts.parameters / 1e9:.3f} G parameters, {_size(facts.bytes)} in {facts.dtype}"
    if facts.end_tokens is not None:
        ends = ", ".join(map(str, facts.end_tokens)) or "none: answers end at max tokens"
        yield f"  chat template: {_TEMPLATES[facts.has_template]}; end tokens: {ends}"
    if facts.tower:
        sizes = len(facts.pictures) or "by its image processor, which is not here"
        yield f"  sees pictures: {_size(facts.tower)} of these on each device; sizes: {sizes}"
    if not facts.has_tokenizer:
        yield "  no tokenizer here: needed to serve it, not to plan"
    yield f"  gated: {_GATED[model.gated]}"


def _arithmetic(report: Report) -> Iterator[str]:
    topology, floor = report.topology, report.floor
    parts = ", ".join(f"{kind} {_size(size)}" for kind, size in report.needed.items())
    yield f"on the first device: {parts}: weights, and for chat the KV cache and the largest copy of a part of it"
    if topology.chip is not None:
        verdict = "fits" if report.advice is None else "does not fit"
        yield f"{_memory(topology)}: {verdict}, by arithmetic"
    if floor is not None:
        yield (
            f"decode floor: {floor.bytes_read / 1e9:.2f} GB read for a step: {floor.seconds * 1e3:.2f} ms, "
            f"{floor.per_user:.0f} tokens/s for each of {floor.slots} users, {floor.in_all:.0f} in all"
        )


def _topologies(outlooks: tuple[Outlook, ...]) -> Iterator[str]:
    yield (
        f"{'chips':12}{'weights':8}{'each holds':>12}{'fits':>6}{'slots':>7}{'context':>9}"
        f"{'one user':>10}{'half full':>10}{'full':>8}{f'{PROMPT} tokens':>14}{'download':>11}{'$/hour':>8}{'$/1M':>8}"
    )
    for row in outlooks:
        hour, million = (f"{cost:.2f}" if cost is not None else "" for cost in (row.per_hour, row.per_million))
        yield (
            f"{row.topology:12}{_way(row.quantize):8}{_size(row.held):>12}{_yes(row.fits):>6}{row.slots or '-':>7}"
            f"{row.context or '-':>9}{row.one_user:>10.0f}{row.half_full:>10.0f}{row.full:>8.0f}"
            f"{row.first_token * 1e3:>11.1f} ms{row.download / 1e9:>8.1f} GB{hour:>8}{million:>8}"
        )
    for heads in sorted({row.heads_copied for row in outlooks if row.heads_copied is not None}):
        names = ", ".join(dict.fromkeys(row.topology for row in outlooks if row.heads_copied == heads))
        yield f"on {names} each device holds the whole KV cache of layers with {heads} heads: too few to split"
    yield "the cheapest chips come first, or the smallest; slots: the most with this context; context: the longest with"
    yield "these slots"
    yield "tokens/s at best: one user with half of the context; all slots half full; all slots full"
    yield f"{PROMPT} tokens: the time to the first token of the answer to a prompt of so many, at best"
    yield "arithmetic on shapes and on the vendor's figures:"
    yield from (f"  {chip.source}" for chip in CHIPS.values())


def _pictures(outlooks: tuple[PictureOutlook, ...]) -> Iterator[str]:
    names = [*outlooks[0].parts]
    yield (
        f"{'chips':12}{'weights':8}{'each holds':>12}{'fits':>6}{'split':>7}{'a picture':>11}{'$/hour':>8}"
        + "".join(f"{name:>18}" for name in names)
    )
    for row in outlooks:
        hour = "" if row.per_hour is None else f"{row.per_hour:.2f}"
        yield (
            f"{row.topology:12}{_way(row.quantize):8}{_size(row.held):>12}{_yes(row.fits):>6}{_yes(row.splits):>7}"
            f"{row.seconds:>9.2f} s{hour:>8}" + "".join(f"{_size(row.parts[name]):>18}" for name in names)
        )
    yield "split: the weights are, over all chips, because one would have too little room; else each holds all"
    yield "a picture: at best, the denoiser's products or its bytes, by the model card's steps and size"
    if seconds := max(row.prompt_seconds for row in outlooks):
        yield (
            f"text encoders are on the host: of each the largest weight counts; a new text takes up to {seconds:.2f} s "
            f"more, at {HOST_LINK / 1e9:.0f} GB/s"
        )


def _way(quantize: str) -> str:
    return "int8" if quantize == "int8" else "as is"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _programs(report: Report) -> Iterator[str]:
    yield f"{'on each device':34}{'arguments':>12}{'temporary':>12}{'in place':>12}{'compiled':>12}"
    for plan in report.plans:
        for program in plan.programs:
            sizes = f"{_size(program.arguments):>12}{_size(program.temporary):>12}{_size(program.in_place):>12}"
            yield f"{program.name:34}{sizes}{program.seconds:>10.1f} s"
        if plan.too_large is not None:
            yield plan.too_large


def _summary(report: Report, peak: int) -> Iterator[str]:
    for model, plan in zip(report.models, report.plans, strict=True):
        cache = f", KV cache {_size(plan.memory.cache)}" if isinstance(plan, ChatPlan) else ""
        yield f"{model.kind}: weights {_size(plan.weights)}{cache}, with padding and temporaries {_size(plan.peak)}"
    topology = report.topology
    if len(report.models) > 1:
        where = "" if topology.devices == 1 else " on the first device, which holds the most"
        yield f"together: {_size(peak)}{where}"
    if topology.chip is not None:
        yield f"{_memory(topology)}: " + ("fits" if report.advice is None else "does not fit")
    yield "The table's figures are the compiler's; weights, KV cache and sums are arithmetic."


def _memory(topology: Topology) -> str:
    assert topology.chip is not None
    shared = "" if topology.chip.devices == 1 else f", which shows {topology.chip.devices} devices"
    return (
        f"{topology.name}: {_size(topology.chip.hbm)} HBM a chip{shared}, {_size(topology.chip.usable)} usable on each "
        f"device (margin {MARGIN:.0%})"
    )


def _size(count: int) -> str:
    return f"{count / GIB:.3f} GiB"
