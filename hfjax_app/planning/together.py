"""All models to be served together: their configs are read, sizes added up, their programs compiled for the same chips.

Does not load weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from hfjax_app.chat.plan import ChatPlan, ChatPlanner
from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, kind_and_line
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.planning.fit import Advice, ChipMemory, advise, fits, larger
from hfjax_app.planning.floor import decode_floor
from hfjax_app.planning.outlook import outlooks
from hfjax_app.planning.report import Planned, Report
from hfjax_app.planning.topology import Topology, devices
from hfjax_app.runtime.checkpoints.hub import is_gated
from hfjax_app.runtime.model_plan import ModelPlan, OnProgram, unreported
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


class Together:
    """Models that are to be served together on some chips. Their configs are read here, which finds what can't run.

    Args:
        models: the model of each of "chat", "image" and "sentiment" that is to be planned.
        topology: the chips. The chat model is split over all of them, the image model is replicated on the first two,
            the sentiment model is on the first.
        dtype: of weights; "auto": the app's choice for these chips.
        prices: dollars of a chip for an hour, by its name.
        options: the other options of `planner_of`.

    Raises:
        RequestRejected: an option has a value that no model of this kind accepts.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        topology: Topology,
        *,
        dtype: str = "auto",
        prices: Mapping[str, float] = MappingProxyType({}),
        **options: Any,
    ):
        self._models, self._topology, self._prices = models, topology, prices
        self._planners: dict[str, Planner] = {}
        self._reasons: dict[str, str] = {}
        usual = "float32" if topology.chip is None else "bfloat16"
        for kind, model in models.items():
            own = options
            if kind == "chat" and topology.chip is None and topology.devices == 1:
                own = options | {"keep_bf16": dtype == "auto", "on_one_cpu": True}
            try:
                self._planners[kind] = planner_of(kind, model, dtype=usual if dtype == "auto" else dtype, **own)
            except Exception as error:
                self._reasons[kind] = _reason(error)

    @cached_property
    def _gated(self) -> dict[str, bool | None]:
        """Whether the hub asks for a licence's acceptance, by kind."""
        return {kind: is_gated(resolve(model)) for kind, model in self._models.items()}

    def by_arithmetic(self) -> Report:
        """What shapes tell, within seconds."""
        planners, topology, chat = self._planners, self._topology, self._planners.get("chat")
        if self._reasons:
            return self._report()
        needed = {kind: bytes_on_first(planner, topology.devices) for kind, planner in planners.items()}
        advice, beside = None, sum(size for kind, size in needed.items() if kind != "chat")
        if not fits(sum(needed.values()), topology):
            advice = advice_for(chat, topology, beside, self._prices)
        if not isinstance(chat, ChatPlanner) or topology.chip is None:
            return self._report(needed=needed, advice=advice)
        memory = chat.estimate(topology.devices)
        return self._report(
            needed=needed,
            advice=advice,
            floor=decode_floor(
                chat.use(topology.devices),
                memory.slot,
                topology,
                slots=chat.options.slots,
                length=chat.options.context,
                context=chat.options.context,
            ),
            outlooks=tuple(outlooks(chat, beside, self._prices)),
        )

    def compile(self, on_program: OnProgram = unreported) -> Report:
        """What the compiler tells: every program is compiled for the chips, and sizes are added up.

        What was compiled when the user interrupts is kept.

        Args:
            on_program: called as each program is ready.

        Raises:
            ModelUnavailable: the topology's compiler is not installed.
        """
        first, chips = self.by_arithmetic(), devices(self._topology)
        plans: dict[str, ModelPlan] = {}
        for kind, planner in self._planners.items():
            try:
                plans[kind] = planner.compile(chips, on_program)
            except Exception as error:
                self._reasons[kind] = _reason(error)
            if kind in plans and plans[kind].interrupted:
                break
        advice = first.advice
        if not self._reasons and len(plans) == len(self._planners):
            refused = any(plan.too_large for plan in plans.values())
            if refused or not fits(sum(plan.peak for plan in plans.values()), self._topology):
                advice = self._advice(plans)
        return replace(first, models=self._planned(plans), advice=advice)

    def _report(self, **found: Any) -> Report:
        return Report(topology=self._topology, models=self._planned({}), **found)

    def _planned(self, plans: Mapping[str, ModelPlan]) -> tuple[Planned, ...]:
        planners = self._planners
        return tuple(
            Planned(
                kind=kind,
                model=model,
                gated=self._gated[kind],
                facts=planners[kind].facts if kind in planners else None,
                reason=self._reasons.get(kind),
                plan=plans.get(kind),
            )
            for kind, model in self._models.items()
        )

    def _advice(self, plans: Mapping[str, ModelPlan]) -> Advice:
        """What would fit, by the compiler's figures."""
        others = [plan for kind, plan in plans.items() if kind != "chat"]
        beside = sum(plan.peak for plan in others)
        if any(plan.too_large for plan in others):
            # The figures lack the refused program. It runs on one chip, so more chips of this size do not help.
            assert self._topology.usable is not None  # a CPU has no limit here
            beside = max(beside, self._topology.usable + 1)
        chat = plans.get("chat")
        memory = chip_memory(chat) if isinstance(chat, ChatPlan) else None
        return advice_for(self._planners.get("chat"), self._topology, beside, self._prices, memory)


def bytes_on_first(planner: Planner, devices: int) -> int:
    """Bytes on the first device, of `devices` devices, as far as shapes tell."""
    return planner.estimate(devices).held if isinstance(planner, ChatPlanner) else planner.weights


def advice_for(
    chat: Planner | None,
    topology: Topology,
    beside: int,
    prices: Mapping[str, float] = MappingProxyType({}),
    memory: ChipMemory | None = None,
) -> Advice:
    """What would fit.

    Args:
        chat: the chat model's planner, if there is one.
        topology: the chips that are too small.
        beside: bytes of the other models on the first device.
        prices: as in `advise`.
        memory: the compiler's figures of the chat model; None: those of its shapes.
    """
    if not isinstance(chat, ChatPlanner):
        return Advice(slots=0, context=0, topology=larger(topology, lambda devices: beside, prices))
    if memory is None:
        estimate = chat.estimate(topology.devices)
        memory = ChipMemory(estimate=estimate, resident=estimate.weights + estimate.cache, decoding=estimate.copied)
    size = (chat.options.slots, chat.options.context, chat.estimate)
    return advise(memory, topology, *size, beside=beside, quantize=chat.options.quantize, prices=prices)


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
