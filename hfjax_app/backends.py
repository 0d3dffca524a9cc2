"""Settings -> ready backends. The only place that picks models; they are loaded and traced one after the other, each
while those before it are compiled.

Chat comes first, because its visitors wait for nothing else. A backend that fails says why; the others go on.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable
from hfjax_app.runtime import tracing_lock
from hfjax_app.runtime.process import freeze_objects, keep_compiled, prepare
from hfjax_app.runtime.programs import CompilerCount, ProgramReport
from hfjax_app.settings import Settings

OnReport = Callable[[ProgramReport], None]


@dataclass(eq=False)
class Backend:
    """One tab's model: its state, the programs compiled so far, and, once ready, the thing itself.

    `seconds` is how long getting ready took, and every program that was compiled since.
    """

    name: str
    model: str
    make: Callable[[OnReport], Any]
    seconds: float = 0.0
    reports: list[ProgramReport] = field(default_factory=list)
    error: str | None = None
    _instance: Any = None
    _state: str = "waiting"

    @property
    def state(self) -> str:
        """ "waiting" (for the backends before it), "loading", "compiling", "ready" or "failed", then also what has
        broken since."""
        if self._state == "ready" and (reason := getattr(self._instance, "broken", None)):
            self.refuse(reason)
        return self._state

    def get(self) -> Any:
        """The ready backend.

        Raises:
            ModelUnavailable: it is not ready yet, or failed; says which and why.
        """
        if self.state == "failed":
            raise ModelUnavailable(f"{self.name} is not available: {self.error}")
        if self.state != "ready":
            raise ModelUnavailable(f"{self.name} is warming up ({self.progress}); try again in a moment")
        return self._instance

    @property
    def progress(self) -> str:
        """What the backend is doing, for a status line."""
        match self.state:
            case "waiting":
                return "waiting for its turn"
            case "loading":
                return f"loading and tracing {self.model}"
            case "compiling":
                last = self.reports[-1]
                source = "from the cache" if last.cached else "compiled"
                count = "1 program" if len(self.reports) == 1 else f"{len(self.reports)} programs"
                return f"{count} ready; {last.name} {source} in {last.seconds:.1f} s"
            case "ready":
                return f"ready; {len(self.reports)} programs in {self.seconds:.1f} s"
            case _:
                return f"failed: {self.error}"

    def warm_up(self, on_turn: Callable[[], None] = lambda: None) -> None:
        """Load and compile, when it is this thread's turn. Never raises: a failure becomes the state.

        Args:
            on_turn: called when the turn has come.
        """
        with tracing_lock.turn():
            self._state, started = "loading", time.monotonic()
            on_turn()
            try:
                self._instance = self.make(self._reported)
                self.seconds = time.monotonic() - started
                self._state = "ready"
            # Also a bug of ours or a library's: the other backends must still come up. A panic in Rust is no Exception.
            except BaseException as error:
                self.refuse(_in_words(error))

    def refuse(self, reason: str) -> None:
        """Be one that can't be used, and say why."""
        self.error, self._state = reason, "failed"

    def _reported(self, report: ProgramReport) -> None:
        """A program is ready: of the warm-up, or one more of a backend that serves, such as another picture size's."""
        self.reports.append(report)
        if self.state == "ready":
            self.seconds += report.seconds
        else:
            self._state = "compiling"

    def stop(self) -> None:
        """Serve nobody any more; may be called twice."""
        if self.state == "ready":
            self.refuse("the server is stopping")
        if stop := getattr(self._instance, "stop", None):
            stop()


class Backends:
    """The three backends of an app.

    Args:
        settings: which models, how many slots, where the compile cache is.

    Attributes:
        compiler: counts what it is asked for from `start` on.
    """

    def __init__(self, settings: Settings):
        self.settings, self.compiler = settings, CompilerCount()
        self.chat = Backend("chat", settings.chat_model, self._make_chat)
        self.sentiment = Backend("sentiment", settings.sentiment_model, self._make_sentiment)
        self.images = Backend("images", settings.image_model, self._make_images)
        self._thread = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)
        self._prepared = threading.Event()

    @property
    def all(self) -> tuple[Backend, ...]:
        return self.chat, self.sentiment, self.images

    def start(self) -> "Backends":
        """Begin to warm up in the background."""
        self.compiler.start()
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Block until every backend is ready or failed, at most `timeout` seconds; whether that is so."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop serving."""
        for backend in self.all:
            backend.stop()

    def device(self) -> str:
        """The devices in words, such as "4 x TPU v5 lite" or "CPU"; "starting" until the warm-up has them (the hosts of
        a slice wait for each other), "none" where they can't be had."""
        if self._thread.is_alive() and not self._prepared.is_set():
            return "starting"
        try:
            prepare(self.settings.cache_dir)
        except Exception:  # the backends say why
            return "none"
        import jax  # after prepare(): the first look at the devices starts jax

        devices = jax.local_devices()
        kind = "CPU" if devices[0].platform == "cpu" else devices[0].device_kind
        return kind if len(devices) == 1 else f"{len(devices)} x {kind}"

    def _warm_up(self) -> None:
        try:
            prepare(self.settings.cache_dir)
            self._prepared.set()
            self._check_budget()
        except Exception as error:  # such as jax's cache in a bucket: nothing can be served
            for backend in self.all:
                backend.refuse(_in_words(error))
            return
        threads = []
        for backend in self.all:
            if backend.state != "failed":
                has_turn = threading.Event()
                name = f"warm-up-{backend.name}"
                threads.append(threading.Thread(target=backend.warm_up, args=(has_turn.set,), name=name, daemon=True))
                threads[-1].start()
                has_turn.wait()  # the next one gets in line behind it
        for thread in threads:
            thread.join()
        keep_compiled()
        freeze_objects()

    def _check_budget(self) -> None:
        """Refuse the models that don't fit this machine's accelerators together, before any is loaded."""
        import jax  # after prepare()

        from hfjax_app.runtime.mesh import accelerator_memory

        if (memory := accelerator_memory()) is None:
            return
        from hfjax_app.planning.budget import refusals

        settings = self.settings
        kinds = {"chat": self.chat, "sentiment": self.sentiment, "image": self.images}
        refused = refusals(
            {kind: backend.model for kind, backend in kinds.items()},
            devices=jax.local_device_count(),
            memory=memory,
            slots=settings.slots,
            context=settings.context,
            dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
            int8=settings.quantize == "int8",
        )
        for kind, reason in refused.items():
            kinds[kind].refuse(reason)

    def _make_chat(self, on_report: OnReport) -> Any:
        from hfjax_app.chat import ChatAssistant, ChatEngine, ZeroShot

        engine = ChatEngine.from_pretrained(
            resolve(self.settings.chat_model),
            slots=self.settings.slots,
            context=self.settings.context,
            dtype=self.settings.dtype,
            quantize=self.settings.quantize,
            speculation=self.settings.speculation,
        )
        try:
            zero_shot = ZeroShot(engine)
        except ModelUnavailable:  # conversations work all the same, and whoever asks for labels is told
            zero_shot = None
            engine.start(on_report)
        else:
            engine.start(on_report, zero_shot.compile)
            zero_shot.run_once()
        return ChatAssistant(engine, zero_shot)

    def _make_sentiment(self, on_report: OnReport) -> Any:
        from hfjax_app.sentiment import SentimentClassifier

        return SentimentClassifier.from_pretrained(resolve(self.settings.sentiment_model), on_report=on_report)

    def _make_images(self, on_report: OnReport) -> Any:
        from hfjax_app.images import ImageGenerator

        model = resolve(self.settings.image_model)
        return ImageGenerator.from_pretrained(
            model, sizes=self.settings.sizes, dtype=self.settings.dtype, on_report=on_report
        )


def _in_words(error: BaseException) -> str:
    """What went wrong: our errors say it themselves, others with their kind."""
    return str(error) if isinstance(error, HfjaxError) else f"{type(error).__name__}: {error}"
