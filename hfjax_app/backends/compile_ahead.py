"""Compiles the programs of models into their bundles, without weights, for devices that are here or not."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hfjax_app.backends.model_bundles import model_bundle
from hfjax_app.errors import ModelUnavailable
from hfjax_app.planning.together import planner_of
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.settings import Settings

_KINDS = {"chat": "chat", "sentiment": "sentiment", "image": "images"}  # a command's flags, the app's kinds


def compile_ahead(
    models: Mapping[str, str],
    settings: Settings,
    devices: Sequence[Any],
    *,
    root: Path | None = None,
    on_kept: Callable[[str, ProgramReport], None] = lambda kind, report: None,
) -> int:
    """Compile every program that the app would use and that is not in its model's bundle.

    Args:
        models: the model of each of "chat", "image" and "sentiment".
        settings: of the app that will serve them.
        devices: all of its devices, those of this process or a topology's.
        root: the folder of all bundles; None: beside jax's compile cache.
        on_kept: called with the kind and the report of each program once it is in the bundle.

    Returns:
        How many programs the bundles have for these models now.

    Raises:
        ModelUnavailable: a model can't be loaded, its programs can't be compiled, or bundles can't be kept; says why.
    """
    count = 0
    for kind, model in models.items():
        planner = planner_of(
            kind,
            model,
            sizes=settings.sizes,
            dtype=_dtype(settings, devices),
            slots=settings.slots,
            context=settings.context,
            quantize=settings.quantize,
            speculation=settings.speculation != "never",
            kept=settings.dtype == "auto",
            on_one_cpu=len(devices) == 1 and devices[0].platform == "cpu",
        )
        bundle = model_bundle(_KINDS[kind], model, settings, devices=devices, root=root)
        if bundle is None:
            raise ModelUnavailable("compiled programs are not kept here: jax has no folder for them")
        programs = Programs(mesh=planner.mesh(devices), planned=True, bundle=bundle)
        specs = planner.specs(programs)
        for report in programs.reports:  # of text encoders, which are compiled to know what the others take
            if not report.cached:
                on_kept(_KINDS[kind], report)
        for spec in specs:
            if programs.is_kept(spec.name, *spec.args, **spec.options):
                continue
            programs.compile(spec.name, spec.function, *spec.args, **spec.options)
            if reason := bundle.reasons.get(spec.name):
                raise ModelUnavailable(f"{spec.name} is compiled, but {reason}")
            on_kept(_KINDS[kind], programs.reports[-1])
        count += len(bundle.names())
    return count


def _dtype(settings: Settings, devices: Sequence[Any]) -> str:
    usual = "float32" if devices[0].platform == "cpu" else "bfloat16"
    return usual if settings.dtype == "auto" else settings.dtype
