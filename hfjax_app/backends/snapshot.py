"""What the app does at one moment, for the page's tab Engine: its counts and its rates.

No text, token, picture, client or path is in it. Taking one reads counters, and starts neither a device nor a
computation. `studio/engine_tab.py` draws it.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hfjax_app.backends.backend import Backend
from hfjax_app.backends.registry import Backends
from hfjax_app.chat.engine.stats import EngineActivity
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.memory import HeldMemory, used_memory
from hfjax_app.runtime.program_report import ProgramReport


@dataclass(frozen=True, kw_only=True)
class ModelSnapshot:
    """One model.

    Attributes:
        kind, name, state: of its backend.
        progress: in words.
        memory: what it holds on each device; None before it is ready.
        temporary: bytes on each device of the program that needs most while it runs; 0 if unknown.
        programs: the ledger, in the order in which they became ready.
        compiled_by_requests: programs that a request had to wait for.
        chat: of a ready chat model, its engine; None for others.
        context: tokens of a slot of a chat model.
        image_steps_per_s: of the latest picture of an image model; None: there was none.
    """

    kind: str
    name: str
    state: str
    progress: str
    memory: HeldMemory | None
    temporary: int
    programs: tuple[ProgramReport, ...]
    compiled_by_requests: int
    chat: EngineActivity | None = None
    context: int = 0
    image_steps_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The app.

    Attributes:
        device: in words.
        memory_used, memory_limit: bytes of the fullest device, or of this process and its host on a CPU; None: unknown.
        compilations: programs that the compiler was called for since the warm-up, operations outside of models'
            programs included; None: the warm-up goes on.
        models: every one, kind by kind.
    """

    device: str
    memory_used: int | None
    memory_limit: int | None
    compilations: int | None
    models: tuple[ModelSnapshot, ...]


def take(backends: Backends) -> Snapshot:
    """The state of all models now."""
    warm = backends.compiled_for_warm_up
    used, limit = None, None
    if warm is not None:
        used, limit = used_memory()
    return Snapshot(
        device=backends.device(),
        memory_used=used,
        memory_limit=limit,
        compilations=None if warm is None else backends.compiler.compilations - warm,
        models=tuple(_of_model(backend, backends.settings.context) for backend in backends.all),
    )


def _of_model(backend: Backend[Any], context: int) -> ModelSnapshot:
    served: Any = None
    with suppress(ModelUnavailable):  # it warms up, or has failed
        served = backend.get()
    programs = tuple(backend.reports)
    return ModelSnapshot(
        kind=backend.kind,
        name=backend.name,
        state=backend.state,
        progress=backend.progress,
        memory=None if served is None else backend.memory,
        temporary=max((report.temporary for report in programs), default=0),
        programs=programs,
        compiled_by_requests=backend.compiled_by_requests,
        chat=served.activity() if served is not None and backend.kind == "chat" else None,
        context=context if backend.kind == "chat" else 0,
        image_steps_per_s=served.steps_per_s if served is not None and backend.kind == "images" else None,
    )
