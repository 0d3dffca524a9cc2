"""What a sentiment model needs of its device: its programs are compiled from its config, without the device."""

import os
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from hfjax_app.errors import HfjaxError, ModelUnavailable
from hfjax_app.line import FairLine
from hfjax_app.runtime.checkpoints.hub import OnBytes, fetch, missing_bytes
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import weights_for
from hfjax_app.runtime.mesh import platform_of, serving_mesh
from hfjax_app.runtime.model_plan import Facts, ModelPlan, OnProgram, compile_as_planned, unreported
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.transforms import calls_at_once
from hfjax_app.runtime.warm_up import ProgramSpec
from hfjax_app.sentiment.classifier import ClassifierCheckpoint
from hfjax_app.sentiment.encoding import Encoder, Lengths
from hfjax_app.sentiment.programs import ClassifierPrograms, checked_labels


class SentimentPlanner:
    """Plans one classifier from its config, without its weights.

    Args:
        source: a folder or a hub id.

    Raises:
        ModelUnavailable: there is no such model, or it can't be served; says why.

    Attributes:
        facts: from the config.
        weights: bytes on the one device that holds the model.
    """

    def __init__(self, source: str | os.PathLike[str]):
        self._checkpoint = ClassifierCheckpoint(source)
        self._model = self._checkpoint.model()
        checked_labels(self._model)
        self._encoder: Encoder | Lengths
        try:
            self._encoder = Encoder(self._checkpoint.tokenizer(), self._model)
        except NoTokenizer:
            self._encoder = Lengths(self._model)
        parameters = list(self._model.parameters())
        size = sum(tensor.nbytes for tensor in (*parameters, *self._model.buffers()))
        self.weights = size
        self.facts = Facts(
            architecture=type(self._model).__name__,
            parameters=sum(parameter.numel() for parameter in parameters),
            bytes=size,
            dtype="float32",
            has_tokenizer=isinstance(self._encoder, Encoder),
        )

    def missing_bytes(self) -> int:
        """Bytes that `fetch` would download."""
        return sum(map(missing_bytes, self._checkpoint.sources))

    def fetch(self, on_bytes: OnBytes | None = None) -> None:
        """Download the weights where they are not here; raises what `hub.fetch` raises."""
        *_, whole = self._checkpoint.sources  # an adapter's own file was read for the plan
        weight_files(fetch(whole, on_bytes=on_bytes), os.fspath(whole))

    def mesh(self, devices: Sequence[Any]) -> Mesh | None:
        """The mesh of the programs for these devices; None: one CPU."""
        return serving_mesh(devices[:1])

    def specs(self, programs: Programs) -> list[ProgramSpec]:
        """The programs that the app would have on the devices of `programs`."""
        weights = weights_for(programs, self._model, Transforms(Cast(self._model)))
        calls = Calls("planned", calls_at_once(programs.mesh))
        compiled = ClassifierPrograms(
            self._model,
            self._encoder,
            weights,
            FairLine(calls.at_once),
            calls,
            on_cpu=platform_of(programs.mesh) == "cpu",
            explains=True,
        )
        return compiled.specs()

    def compile(self, devices: Sequence[Any], on_program: OnProgram = unreported) -> ModelPlan:
        """Compile every program for the first of these devices, as the app does.

        Raises:
            ModelUnavailable: the architecture can't be traced or compiled; says why.
        """
        try:
            programs = compile_as_planned(self.mesh(devices), self.specs, on_program)
        except HfjaxError:
            raise
        except Exception as error:
            raise ModelUnavailable(f"{self.facts.architecture} can't be compiled: {why_untraceable(error)}") from error
        return ModelPlan(
            weights=self.weights,
            resident=max([self.weights, *(report.arguments for report in programs.reports)]),
            programs=tuple(programs.reports),
            too_large=programs.refused,
            interrupted=programs.interrupted,
        )
