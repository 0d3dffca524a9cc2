"""What a text-to-image model needs of its devices: its programs are compiled from its configs, without the devices.

Reads no weights. `backends/budget.py` and `planning/` decide from it whether a model fits.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from jax.sharding import Mesh

from hfjax_app.errors import HfjaxError, ModelUnavailable
from hfjax_app.images.checkpoint import (
    denoiser_name,
    fetch_weights,
    network_names,
    read_empty,
    recommended,
    text_encoder_names,
)
from hfjax_app.images.networks import Storage, network_bytes
from hfjax_app.images.programs import DiffusionPrograms
from hfjax_app.images.single_file import single_file
from hfjax_app.runtime.checkpoints.hub import OnBytes, missing_bytes
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.mesh import picture_mesh, splits_pictures
from hfjax_app.runtime.model_plan import Facts, ModelPlan, OnProgram, compile_as_planned, unreported
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.topology import memory_of
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.warm_up import ProgramSpec


class ImagePlanner:
    """Plans one pipeline from its configs, without its weights.

    Args:
        source: a folder in diffusers' layout or a hub id.
        sizes: (width, height) of pictures to compile for besides the checkpoint's own.
        storage: of the weights, with a dtype.

    Raises:
        ModelUnavailable: there is no such model, or it can't be served; says why.

    Attributes:
        facts: from the configs.
        storage: as given.
        steps: of a picture, by the model's card.
        denoiser: the name of the network that makes them.
    """

    def __init__(self, source: str | os.PathLike[str], *, sizes: Sequence[tuple[int, int]] = (), storage: Storage):
        self._source = source
        self._pipeline = read_empty(source)
        self._recommended = recommended(source, self._pipeline)
        self._sizes, self.storage = sizes, storage
        self.steps, self.denoiser = self._recommended.steps, denoiser_name(self._pipeline)
        networks = [part for part in self._pipeline.components.values() if isinstance(part, torch.nn.Module)]
        self._parts: dict[tuple[Storage, int], dict[str, int]] = {}
        self.facts = Facts(
            architecture=type(self._pipeline).__name__,
            parameters=sum(parameter.numel() for network in networks for parameter in network.parameters()),
            bytes=sum(self.parts(1, replace(storage, text_encoders="device")).values()),
            dtype=storage.in_words,
        )

    @property
    def weights(self) -> int:
        """Bytes of all weights on a device that holds them whole."""
        return sum(self.parts().values())

    def parts(self, devices: int = 1, storage: Storage | None = None) -> dict[str, int]:
        """Bytes of each network's weights on each of the devices that they are split over.

        Args:
            devices: 1: each holds all weights.
            storage: None: as it was given.
        """
        key = (storage or self.storage, devices)
        if key not in self._parts:
            self._parts[key] = network_bytes(self._pipeline, *key)
        return self._parts[key]

    def sent(self, storage: Storage | None = None) -> int:
        """Bytes that go from the host's memory through the device for a prompt; 0 where text encoders stay there."""
        kept = storage or self.storage
        if kept.text_encoders == "device":
            return 0
        there = self.parts(1, replace(kept, text_encoders="device"))
        return sum(there[name] for name in text_encoder_names(self._pipeline))

    def held(self, devices: int, memory: int | None, storage: Storage | None = None) -> dict[str, int]:
        """Bytes of each network's weights on the first of these devices.

        Args:
            devices: their number.
            memory: bytes that each has for arrays; None: enough for all weights.
            storage: as for `parts`.
        """
        splits = splits_pictures(devices, sum(self.parts(1, storage).values()), memory)
        return self.parts(devices if splits else 1, storage)

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
        return picture_mesh(devices, self.weights, memory_of(devices[0]))

    def specs(self, programs: Programs) -> list[ProgramSpec]:
        """The programs that the app would have on the devices of `programs`; those of text encoders are compiled."""
        return self._compiled(programs).specs

    @cached_property
    def work(self) -> int:
        """Operations of the denoiser in one step of a picture by the model's card; is traced, not compiled.

        Raises:
            ModelUnavailable: the architecture can't be traced; says why.
        """
        try:
            return self._compiled(Uncompiled(planned=True)).work(self._recommended.guidance_scale)
        except HfjaxError:
            raise
        except Exception as error:
            raise ModelUnavailable(f"{self.facts.architecture} can't be traced: {why_untraceable(error)}") from error

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels of its pictures; traces the text encoders."""
        return self._recommended.size or self._compiled(Uncompiled(planned=True)).size

    def _compiled(self, programs: Programs) -> DiffusionPrograms:
        return DiffusionPrograms(
            self._pipeline,
            guidance=self._recommended.guidance_scale,
            programs=programs,
            storage=self.storage,
            size=self._recommended.size,
            sizes=self._sizes,
        )

    def compile(self, devices: Sequence[Any], on_program: OnProgram = unreported) -> ModelPlan:
        """Compile every program for these devices, as the app does.

        Raises:
            ModelUnavailable: the architecture can't be traced or compiled; says why.
            RequestRejected: the model can't draw one of the sizes.
        """
        compiled: list[DiffusionPrograms] = []

        def specs(programs: Programs) -> list[ProgramSpec]:
            compiled.append(self._compiled(programs))
            return compiled[0].specs

        weights = sum(self.held(len(devices), memory_of(devices[0])).values())
        try:
            programs = compile_as_planned(self.mesh(devices), specs, on_program)
            whole = compiled and programs.refused is None and not programs.interrupted
            resident = max(weights, compiled[0].argument_bytes) if whole else weights
        except HfjaxError:
            raise
        except Exception as error:
            raise ModelUnavailable(f"{self.facts.architecture} can't be compiled: {why_untraceable(error)}") from error
        return ModelPlan(
            weights=weights,
            resident=resident,
            programs=tuple(programs.reports),
            too_large=programs.refused,
            interrupted=programs.interrupted,
        )


class Uncompiled(Programs):
    """Programs that are never called: shapes of their results are traced, and nothing is compiled."""

    def compile(self, name: str, *_: Any, **__: Any) -> Program:
        return Program(Future(), self.mesh)
