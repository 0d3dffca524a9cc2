"""The programs for a request's size: waited for while they join, or compiled for it, one size at a time.

Does not say what compiles: `sized_programs.py` does.
"""

import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, wait

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.pipeline import DiffusionPrograms
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.sized_programs import SizedPrograms
from hfjax_app.images.steps import Waiting

_LOOK_UP_S = 0.5


class SizeCompiler:
    """Requests -> programs. Thread-safe.

    Args:
        programs: of the model; `start` was called.
    """

    def __init__(self, programs: DiffusionPrograms):
        self._programs = programs
        self._compiler = threading.Lock()  # held while a size compiles

    def programs_for(self, request: ImageRequest) -> Generator[Waiting, None, SizedPrograms]:
        """The programs that a request needs. May be closed at each yield.

        Yields:
            Waiting, twice a second, with the reason.

        Raises:
            ModelUnavailable: they are missing, and their compilation was given up.
        """
        while self._programs.is_pending(request.size):
            self._check_not_given_up()
            yield Waiting(reason="the programs for {} x {} are being compiled".format(*request.size))
            time.sleep(_LOOK_UP_S)
        programs = yield from self._compiled(request.size)
        while request.image is not None and not programs.can_encode:
            self._check_not_given_up()
            yield Waiting(reason="the program that reads pictures is being compiled")
            time.sleep(_LOOK_UP_S)
        return programs

    def _check_not_given_up(self) -> None:
        if reason := self._programs.warm_up.given_up:
            raise ModelUnavailable(f"the programs for this request are missing: {reason}")

    def _compiled(self, size: tuple[int, int]) -> Generator[Waiting, None, SizedPrograms]:
        """The programs for a size. They compile in another thread, one size at a time.

        A request that is closed does not wait for a compilation. One that has begun is finished and kept for later
        requests; one that has not begun is dropped.
        """
        started, (wide, tall), compiling = time.perf_counter(), size, None
        while compiling is None or not compiling.done():
            if not (seconds := self._programs.compile_seconds(size)):
                break
            if compiling is None and self._compiler.acquire(blocking=False):
                compiling = self._compile(size)
            left = max(1, round(seconds - (time.perf_counter() - started)))
            yield Waiting(reason=f"{wide} x {tall} compiles about {left} s first")
            if compiling is None:
                time.sleep(_LOOK_UP_S)  # a caller that has gone can close the generator at each yield
            else:
                wait([compiling], _LOOK_UP_S)
        return self._programs.sized(size) if compiling is None else compiling.result()

    def _compile(self, size: tuple[int, int]) -> Future[SizedPrograms]:
        """Compile in a daemon thread, so that the process can end meanwhile; releases `_compiler` afterwards."""
        compiling: Future[SizedPrograms] = Future()

        def compile_programs() -> None:
            try:
                compiling.set_result(self._programs.sized(size))
            except Exception as error:
                compiling.set_exception(error)
            finally:
                self._compiler.release()

        threading.Thread(target=compile_programs, name="image-compiler", daemon=True).start()
        return compiling
