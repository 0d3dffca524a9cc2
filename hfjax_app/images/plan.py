"""What a text-to-image model needs of its devices: its programs are compiled from its configs, without the devices.

Reads no weights. Does not decide whether the model fits: `planning/` does.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from jax.sharding import Mesh

from hfjax_app.errors import HfjaxError, ModelUnavailable
from hfjax_app.images.checkpoint import fetch_weights, network_names, read_empty, recommended
from hfjax_app.images.programs import DiffusionPrograms
from hfjax_app.images.single_file import single_file
from hfjax_app.runtime.checkpoints.hub import OnBytes, missing_bytes
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.dtype_policy import DTYPES
from hfjax_app.runtime.mesh import PAIR, serving_mesh
from hfjax_app.runtime.model_plan import Facts, ModelPlan, OnProgram, compile_as_planned, unreported
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.warm_up import ProgramSpec


class ImagePlanner:
    """Plans one pipeline from its configs, without its weights.

    Args:
        source: a folder in diffusers' layout or a hub id.
        sizes: (width, height) of pictures to compile for besides the checkpoint's own.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        ModelUnavailable: there is no such model, or it can't be served; says why.

    Attributes:
        facts: from the configs.
        weights: bytes on each device that holds the model: one device, or two that share each guidance pair.
    """

    def __init__(self, source: str | os.PathLike[str], *, sizes: Sequence[tuple[int, int]] = (), dtype: str):
        self._source = source
        self._pipeline = read_empty(source)
        self._recommended = recommended(source, self._pipeline)
        self._sizes, self._dtype = sizes, DTYPES[dtype]
        networks = [part for part in self._pipeline.components.values() if isinstance(part, torch.nn.Module)]
        parameters = [parameter for network in networks for parameter in network.parameters()]
        self.weights = sum(parameter.numel() * self._dtype.itemsize for parameter in parameters)
        self.weights += sum(buffer.nbytes for network in networks for buffer in network.buffers())
        self.facts = Facts(
            architecture=type(self._pipeline).__name__,
            parameters=sum(parameter.numel() for parameter in parameters),
            bytes=self.weights,
            dtype=dtype,
        )

    def missing_bytes(self) -> int:
        """Bytes that `fetch` would download."""
        return missing_bytes(self._source, network_names(self._pipeline))

    def fetch(self, on_bytes: OnBytes | None = None) -> None:
        """Download the weights where they are not here; raises what `fetch_weights` raises."""
        if single_file(self._source) is None:
            found = fetch_weights(self._source, self._pipeline, on_bytes)
            for name in network_names(self._pipeline):
                weight_files(found.part(name).folder, found.name)

    def mesh(self, devices: Sequence[Any]) -> Mesh | None:
        """The mesh of the programs for these devices; None: one CPU."""
        return serving_mesh(devices[:PAIR])

    def specs(self, programs: Programs) -> list[ProgramSpec]:
        """The programs that the app would have on the devices of `programs`; those of text encoders are compiled."""
        return self._compiled(programs).specs

    def _compiled(self, programs: Programs) -> DiffusionPrograms:
        return DiffusionPrograms(
            self._pipeline,
            guidance=self._recommended.guidance_scale,
            programs=programs,
            dtype=jax_dtype(self._dtype),
            size=self._recommended.size,
            sizes=self._sizes,
        )

    def compile(self, devices: Sequence[Any], on_program: OnProgram = unreported) -> ModelPlan:
        """Compile every program for the first two of these devices, as the app does.

        Raises:
            ModelUnavailable: the architecture can't be traced or compiled; says why.
            RequestRejected: the model can't draw one of the sizes.
        """
        compiled: list[DiffusionPrograms] = []

        def specs(programs: Programs) -> list[ProgramSpec]:
            compiled.append(self._compiled(programs))
            return compiled[0].specs

        try:
            programs = compile_as_planned(self.mesh(devices), specs, on_program)
            whole = compiled and programs.refused is None and not programs.interrupted
            resident = max(self.weights, compiled[0].argument_bytes) if whole else self.weights
        except HfjaxError:
            raise
        except Exception as error:
            raise ModelUnavailable(f"{self.facts.architecture} can't be compiled: {why_untraceable(error)}") from error
        return ModelPlan(
            weights=self.weights,
            resident=resident,
            programs=tuple(programs.reports),
            too_large=programs.refused,
            interrupted=programs.interrupted,
        )
