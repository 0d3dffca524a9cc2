"""Models to be served together: their configs are read, sizes added up, programs compiled for the same chips."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hfjax_app.backends.budget import Advice, ChipMemory, Planner, advice_for, bytes_on_first, fits, planner_of
from hfjax_app.chat.plan import ChatPlan, ChatPlanner
from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, RequestRejected, kind_and_line
from hfjax_app.images.networks import Storage
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.planning.outlook import SURVEYED, Outlook, decode_floor, outlooks, picture_outlooks, table
from hfjax_app.planning.report import ModelReport, Report
from hfjax_app.runtime.checkpoints.hub import is_gated
from hfjax_app.runtime.model_plan import ModelPlan, OnProgram, unreported
from hfjax_app.runtime.topology import NAMES, Topology, devices, parse


class Together:
    """Models that are to be served together on some chips. Their configs are read here, which finds what can't run.

    Args:
        models: the model of each of "chat", "image" and "sentiment" that is to be planned.
        topology: the chips. The chat model is split over all of them, the image model is whole on each or split
            over all, the sentiment model is on the first.
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
        needed = {
            kind: bytes_on_first(planner, topology.devices, topology.usable) for kind, planner in planners.items()
        }
        advice, beside = None, sum(size for kind, size in needed.items() if kind != "chat")
        if not fits(sum(needed.values()), topology):
            advice = advice_for(chat or planners.get("image"), topology, beside, self._prices)
        found: dict[str, Any] = {"needed": needed, "advice": advice}
        if isinstance(image := planners.get("image"), ImagePlanner) and topology.chip is not None:
            others = sum(size for kind, size in needed.items() if kind not in ("image", "chat"))
            try:
                found["pictures"] = tuple(picture_outlooks(image, others, self._prices))
            except Exception as error:
                self._reasons["image"] = _reason(error)
                return self._report()
        if not isinstance(chat, ChatPlanner) or topology.chip is None:
            return self._report(**found)
        memory = chat.estimate(topology.devices)
        return self._report(
            **found,
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
        return replace(first, models=self._model_reports(plans), advice=advice)

    def _report(self, **figures: Any) -> Report:
        return Report(topology=self._topology, models=self._model_reports({}), **figures)

    def _model_reports(self, plans: Mapping[str, ModelPlan]) -> tuple[ModelReport, ...]:
        planners = self._planners
        return tuple(
            ModelReport(
                kind=kind,
                name=model,
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
        planner = self._planners.get("chat", self._planners.get("image"))
        return advice_for(planner, self._topology, beside, self._prices, memory)


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


def survey(folder: Path, **options: Any) -> Iterator[str]:
    """Quick plans of many models as tables in Markdown: which chips are enough for each, or why it can't run.

    Only configs are read. Yields the tables' lines, one for each folder with a config.json (chat models) or with a
    model_index.json (image models).

    Args:
        folder: has a folder for each model, in Hugging Face format; its name is the model's.
        options: as for `Together`.

    Raises:
        RequestRejected: there are no such folders.
    """
    chats, images = (
        sorted(path.parent for path in folder.glob(f"*/{name}.json")) for name in ("config", "model_index")
    )
    if not chats and not images:
        raise RequestRejected(f"--configs {folder}: no folder in it has a config.json or a model_index.json")
    if chats:
        yield "| Model | Parameters | Pictures | As it is | Tokens/s | int8 | Tokens/s | Why not |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for source in chats:
        report = Together({"chat": str(source)}, parse(NAMES[0]), **options).by_arithmetic()
        yield f"| {source.name} | {' | '.join(_survey_cells(report))} |".replace(f"'{source}'", f"`{source.name}`")
    if images:
        columns = ["Model", "Weights", "Denoiser", "Text encoders", "Autoencoder", "TFLOP a step", *SURVEYED]
        yield f"| {' | '.join(columns)} |"
        yield f"| {' | '.join(['---'] * len(columns))} |"
    dtype = options.get("dtype", "auto")
    storage = Storage(
        dtype="bfloat16" if dtype == "auto" else dtype, text_encoders=options.get("image_text_encoders", "device")
    )
    for source in images:
        try:
            yield from table(source.name, ImagePlanner(source, storage=storage))
        except Exception as error:
            yield f"| {source.name} | {_reason(error)} |"


def _survey_cells(report: Report) -> list[str]:
    [model] = report.models
    facts = model.facts
    size = "" if facts is None else f"{facts.parameters / 1e9:.1f} G"
    if model.reason is not None:
        return [size, *[""] * 5, model.reason.replace("|", "\\|")]
    ways = [_cheapest([outlook for outlook in report.outlooks if outlook.quantize == way]) for way in ("none", "int8")]
    sees = "yes" if facts is not None and facts.tower else ""
    return [size, sees, *ways[0], *ways[1], "" if any(cell for way in ways for cell in way) else "larger than one host"]


def _cheapest(outlooks: list[Outlook]) -> tuple[str, str]:
    """The cheapest topology that fits, and its tokens per second for one user; empty if none does."""
    cheapest = next((outlook for outlook in outlooks if outlook.fits), None)
    return ("", "") if cheapest is None else (cheapest.topology, f"{cheapest.one_user:.0f}")
