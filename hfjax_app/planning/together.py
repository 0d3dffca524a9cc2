"""All models to be served together: their configs are read, their programs compiled for the same chips, sizes added up.

Does not load weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfjax_app.chat.plan import ChatPlan, ChatPlanner
from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, kind_and_line
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.planning.fit import Advice, ChipMemory, advise, decode_floor, fits, larger
from hfjax_app.planning.report import Planned, Report
from hfjax_app.planning.topology import Topology, devices
from hfjax_app.runtime.checkpoints.hub import is_gated
from hfjax_app.runtime.model_plan import ModelPlan
from hfjax_app.runtime.programs import ProgramReport
from hfjax_app.sentiment.plan import SentimentPlanner

Planner = ChatPlanner | ImagePlanner | SentimentPlanner


def planner_of(
    kind: str, model: str, *, sizes: Sequence[tuple[int, int]] = (), dtype: str = "float32", **chat: Any
) -> Planner:
    """The planner of a "chat", "image" or "sentiment" model.

    Args:
        kind: the tab that uses the model.
        model: an embedded model's name, a folder or a hub id.
        sizes: for an image model, as in ImagePlanner.
        dtype: of a chat model's or an image model's weights.
        chat: for a chat model, ChatPlanner's other options.

    Raises:
        ModelUnavailable, RequestRejected: from the planners.
    """
    source = resolve(model)
    if kind == "chat":
        return ChatPlanner(source, dtype=dtype, **chat)
    return ImagePlanner(source, sizes=sizes, dtype=dtype) if kind == "image" else SentimentPlanner(source)


def plan_together(
    models: Mapping[str, str],
    topology: Topology,
    on_report: Callable[[ProgramReport], None] = lambda report: None,
    *,
    dtype: str = "auto",
    **options: Any,
) -> Report:
    """Read every model's config; if all are supported, compile their programs for the topology and add up their memory.

    Args:
        models: the model of each of "chat", "image" and "sentiment" that is to be planned.
        topology: the chips. The chat model is split over all of them, the image model is replicated on the first two,
            the sentiment model is on the first.
        on_report: called with each program's report.
        dtype: of weights; "auto": the app's choice for these chips.
        options: the other options of `planner_of`.

    Raises:
        ModelUnavailable: the topology's compiler is not installed.
        RequestRejected: an option has a value that no model of this kind accepts.
    """
    planners: dict[str, Planner] = {}
    plans: dict[str, ModelPlan] = {}
    reasons: dict[str, str] = {}
    usual = "float32" if topology.chip is None else "bfloat16"
    for kind, model in models.items():
        own = options
        if kind == "chat" and topology.chip is None and topology.devices == 1:
            own = options | {"kept": dtype == "auto", "on_one_cpu": True}
        try:
            planners[kind] = planner_of(kind, model, dtype=usual if dtype == "auto" else dtype, **own)
        except Exception as error:
            reasons[kind] = _reason(error)
    if not reasons:
        chips = devices(topology)
        for kind, planner in planners.items():
            try:
                plans[kind] = planner.compile(chips, on_report)
            except Exception as error:
                reasons[kind] = _reason(error)
    planned = tuple(
        Planned(
            kind=kind,
            model=model,
            gated=is_gated(resolve(model)),
            facts=planners[kind].facts if kind in planners else None,
            reason=reasons.get(kind),
            plan=plans.get(kind),
        )
        for kind, model in models.items()
    )
    advice = floor = None
    if not reasons:
        refused = any(plan.too_large for plan in plans.values())
        if refused or not fits(sum(plan.peak for plan in plans.values()), topology):
            advice = _advice(planners, plans, topology)
        chat, plan = planners.get("chat"), plans.get("chat")
        if isinstance(chat, ChatPlanner) and isinstance(plan, ChatPlan):
            floor = decode_floor(plan.memory.read, plan.memory.cache, chat.slots, topology)
    return Report(topology=topology, models=planned, advice=advice, floor=floor)


def _reason(error: Exception) -> str:
    """The reason why a model can't run, in one line: an error of a library must not hide the report on the others.

    Raises:
        RequestRejected: the error is the request's and not the model's.
    """
    if isinstance(error, HfjaxError) and not isinstance(error, ModelUnavailable):
        raise error
    if isinstance(error, ModelUnavailable):
        return str(error)
    return kind_and_line(error)


def _advice(planners: Mapping[str, Planner], plans: Mapping[str, ModelPlan], topology: Topology) -> Advice:
    others = [plan for kind, plan in plans.items() if kind != "chat"]
    beside = sum(plan.peak for plan in others)
    if any(plan.too_large for plan in others):
        # The figures lack the refused program. It runs on one chip, so more chips of this size do not help.
        assert topology.usable is not None  # a CPU has no limit here
        beside = max(beside, topology.usable + 1)
    chat, plan = planners.get("chat"), plans.get("chat")
    if not isinstance(chat, ChatPlanner) or not isinstance(plan, ChatPlan):
        return Advice(slots=0, context=0, topology=larger(topology, lambda devices: beside))

    return advise(chip_memory(plan), topology, chat.slots, chat.context, chat.estimate, beside=beside)


def chip_memory(plan: ChatPlan) -> ChipMemory:
    """The compiler's figures of arguments, with the padding of the chip's layouts, and of temporary memory.

    If the compiler refused a program or gives no figures, the copies of decoding are computed from shapes.
    """

    def largest(*, decodes: bool) -> int:
        programs = (program for program in plan.programs if program.name.startswith("chat_decode") == decodes)
        return max((program.temporary for program in programs), default=0)

    decoding = largest(decodes=True)
    if plan.too_large or not decoding:
        decoding = max(decoding, plan.memory.copied)
    return ChipMemory(estimate=plan.memory, resident=plan.resident, decoding=decoding, others=largest(decodes=False))
