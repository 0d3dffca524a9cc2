"""All models that are to be served together: looked at, compiled for the same chips, and judged by the fullest one."""

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
        kind: which tab the model is for.
        model: an embedded model's name, a folder or a hub id.
        sizes: ImagePlanner's, for an image model.
        dtype: of a chat model's or an image model's weights.
        chat: ChatPlanner's other options, for a chat model.

    Raises:
        ModelUnavailable, RequestRejected: as the planners do.
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
    """Look at every model; where all are supported, compile their programs for the topology and add up what they need.

    Args:
        models: for each of "chat", "image" and "sentiment" that is wanted, its model.
        topology: the chips. The chat model is split over all of them, the image model lies whole on the first two,
            the sentiment model on the first.
        on_report: called with each program's report.
        dtype: of weights; "auto": as the app chooses it there.
        options: as `planner_of` takes the others.

    Raises:
        ModelUnavailable: the topology's compiler is not here.
        RequestRejected: a value that no model of this kind takes.
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
    """Why one model can't run, in one line; what a library raises over it must not hide what is known of the others.

    Raises:
        RequestRejected: a request's fault is no model's.
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
        # The figures are without the refused program. It lies on one chip, so more chips of this size don't help.
        assert topology.usable is not None  # everything fits a CPU
        beside = max(beside, topology.usable + 1)
    chat, plan = planners.get("chat"), plans.get("chat")
    if not isinstance(chat, ChatPlanner) or not isinstance(plan, ChatPlan):
        return Advice(slots=0, context=0, topology=larger(topology, lambda devices: beside))

    return advise(footprint_of(plan), topology, chat.slots, chat.context, chat.estimate, beside=beside)


def footprint_of(plan: ChatPlan) -> ChipMemory:
    """Arguments and temporaries are the compiler's; its arguments hold the padding of the chip's layouts.

    Where it refused a program or gives no figures, what decoding copies is arithmetic.
    """

    def largest(*, decodes: bool) -> int:
        programs = (program for program in plan.programs if program.name.startswith("chat_decode") == decodes)
        return max((program.temporary for program in programs), default=0)

    decoding = largest(decodes=True)
    if plan.too_large or not decoding:
        decoding = max(decoding, plan.memory.copied)
    return ChipMemory(estimate=plan.memory, resident=plan.resident, decoding=decoding, others=largest(decodes=False))
