"""The memory and the programs of a chat model, compiled from its config for devices that may be absent.

Reads no weights. `planning/` decides whether a model fits. What a forward reads and computes of the weights
(`WeightUse`) leaves out attention's own products, which are small beside the weights' for a context of a few thousand
tokens. A mixture's token reads the experts that it chooses.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch
from jax.sharding import AbstractMesh, Mesh
from transformers import AutoModelForCausalLM, PreTrainedModel

from hfjax_app.chat.memory import Arrays, MemoryEstimate, held_by, memory_of
from hfjax_app.chat.model.buckets import slot_memory
from hfjax_app.chat.model.decoder import Decoder
from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, cache_shape
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.model.rotary import positions_of
from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.text.tokenizer import end_tokens, load_tokenizer
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.chat.zero_shot import LabelScores
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import empty_model, saved_dtype
from hfjax_app.runtime.checkpoints.hub import OnBytes, fetch, missing_bytes
from hfjax_app.runtime.checkpoints.lora import base_of
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.dtype_policy import DTYPES
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.memory import held_bytes, held_numbers
from hfjax_app.runtime.mesh import AXIS, TensorParallel, mesh_of
from hfjax_app.runtime.model_plan import Facts, ModelPlan, OnProgram, compile_as_planned, unreported
from hfjax_app.runtime.module import Shapes
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.transforms import chat_transforms
from hfjax_app.runtime.warm_up import ProgramSpec


@dataclass(frozen=True, kw_only=True)
class WeightUse:
    """The weights' part of a forward on each device.

    Args:
        always: bytes that every forward reads.
        experts: pairs: bytes of experts, and the share of them that a token chooses.
        products: multiply-adds of a token, without those of the output layer.
        output: multiply-adds of the output layer for one token.
    """

    always: int
    experts: tuple[tuple[int, float], ...] = ()
    products: float = 0.0
    output: float = 0.0

    def read(self, tokens: int | None = None) -> int:
        """Bytes that a forward of so many tokens reads, each expert once; None: of any number of tokens.

        Tokens choose experts evenly and independently of each other: n of them read 1 - (1 - share)^n of all.
        """
        left = 0.0 if tokens is None else float(tokens)
        chosen = (size * (1.0 if tokens is None else 1 - (1 - share) ** left) for size, share in self.experts)
        return self.always + int(sum(chosen))


def weight_use(
    decoder: Decoder, model: PreTrainedModel, weights: Mapping[str, jax.Array | jax.ShapeDtypeStruct]
) -> WeightUse:
    """What a forward reads of the weights.

    Args:
        decoder: of the model, with any transforms.
        model: has the names of the weights.
        weights: with shardings; of the same model, also with other transforms than the decoder's.
    """
    unread = decoder.weights_shape.keys() - decoder.weights_read
    looked_up, output = _embedding_and_output(model, weights)
    always, experts = 0, Counter[float]()
    products, last = 0.0, 0.0
    for name, array in weights.items():
        if name in unread or name == looked_up:
            continue
        share = _share(decoder, name, array)
        if share < 1:
            experts[share] += held_bytes(array)
        else:
            always += held_bytes(array)
        if name == output:
            last += held_numbers(array)
        elif len(array.shape) > 1:
            products += held_numbers(array) * share
    return WeightUse(
        always=always,
        experts=tuple((size, share) for share, size in experts.items()),
        products=products,
        output=last,
    )


def _share(decoder: Decoder, name: str, array: jax.Array | jax.ShapeDtypeStruct) -> float:
    """The share of a weight that a token reads: below 1 for experts only."""
    chosen = decoder.experts_per_token.get(name.rpartition(".")[0])
    return 1.0 if chosen is None or len(array.shape) < 2 else min(1.0, chosen / array.shape[0])


def _embedding_and_output(model: PreTrainedModel, weights: Mapping[str, object]) -> tuple[str | None, str | None]:
    """The weight of an input embedding that is only looked up, if there is one, and the output layer's.

    An output layer may read the embedding's array; with int8 a tied output layer has its own.
    """
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    embedding, output = names.get(model.get_input_embeddings()), names.get(model.get_output_embeddings())
    if output not in weights:
        return None, embedding
    return embedding if embedding in weights else None, output


@dataclass(frozen=True, kw_only=True)
class ChatPlan(ModelPlan):
    """A chat model on some devices. `memory` is computed from shapes, the rest comes from the compiler."""

    memory: MemoryEstimate


class ChatPlanner:
    """Plans one chat model from its config, without its weights.

    Args:
        source: a folder or a hub id.
        dtype: "float32", "bfloat16" or "float16".
        on_one_cpu: whether the only device is a CPU, which gets other programs.
        options: of EngineOptions. `keep_bf16` counts on one CPU.

    Raises:
        ModelUnavailable: there is no such model, or its architecture can't run, and why.
        RequestRejected: an option is out of range, or the context longer than the model's positions.

    Attributes:
        facts: read from the config.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        dtype: str,
        on_one_cpu: bool = False,
        **options: Any,
    ):
        chosen = EngineOptions(**options)
        self._on_one_cpu = on_one_cpu
        base = base_of(source) or source
        self._sources = dict.fromkeys((source, base))  # an adapter and its base, or a model
        self.model: PreTrainedModel = empty_model(AutoModelForCausalLM, base, DTYPES[dtype])
        self._saved = saved_dtype(base)
        self._weights: dict[tuple[int, str], Shapes] = {}
        try:
            tokenizer = load_tokenizer(source, chosen.context, base=base)
        except NoTokenizer:
            tokenizer = None
        template = None if tokenizer is None else tokenizer.chat_template is not None
        ends = end_tokens(self.model, tokenizer)
        self.options = replace(chosen, end_tokens=ends, keep_bf16=on_one_cpu and chosen.keep_bf16)
        self._vision = VisionTower.of(base, self.model, tokenizer, chosen, None)
        self._tower: Arrays = {} if self._vision is None else self._vision.weights
        if tokenizer is None:  # a config alone: it is served with its image processor beside it
            self._tower = VisionTower.shapes_of(base, self.model)
        # Raises for what can't run, before anything is compiled; its decoder is that of any number of devices.
        self._whole = self._runner(self._mesh(1))
        stays = self.options.keep_bf16 and dtype == "float32" and self._saved == torch.bfloat16
        held = f"bfloat16, computed in {dtype}" if stays else dtype
        self.facts = Facts(
            architecture=type(self.model).__name__,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            bytes=self.estimate(1).weights,
            dtype=held if chosen.quantize == "none" else f"{chosen.quantize} and {held}",
            has_template=template,
            end_tokens=ends,
            has_tokenizer=template is not None,
            tower=held_by(self._tower),
            pictures=() if self._vision is None else tuple(grid.name for grid in self._vision.all_grids),
        )

    def missing_bytes(self) -> int:
        """Bytes that `fetch` would download."""
        return sum(map(missing_bytes, self._sources))

    def fetch(self, on_bytes: OnBytes | None = None) -> None:
        """Download the weights where they are not here; raises what `hub.fetch` raises."""
        *adapter, whole = self._sources
        for source in adapter:
            fetch(source, on_bytes=on_bytes)
        weight_files(fetch(whole, on_bytes=on_bytes), os.fspath(whole))

    @property
    def positions(self) -> int | None:
        """The longest context; None: no limit."""
        return positions_of(self.model.config.get_text_config(decoder=True))

    @property
    def download(self) -> int:
        """Bytes of the weights in the files."""
        return sum(
            parameter.numel() * (self._saved or parameter.dtype).itemsize for parameter in self.model.parameters()
        )

    def _mesh(self, devices: int) -> AbstractMesh | None:
        return None if self._on_one_cpu else AbstractMesh((devices,), (AXIS,))

    def _runner(self, mesh: Any) -> ModelRunner:
        vision = None if self._vision is None else self._vision.on(mesh)
        return ModelRunner(self.model, self.options, mesh=mesh, saved_dtype=self._saved, vision=vision)

    @staticmethod
    def _label_scores(runner: ModelRunner) -> LabelScores | None:
        """None where the app works without zero-shot classification."""
        try:
            return LabelScores(runner)
        except ModelUnavailable:
            return None

    def _held(self, devices: int, quantize: str) -> Shapes:
        """The weights on so many devices, as shapes."""
        if (devices, quantize) not in self._weights:
            mesh: Any = self._mesh(devices)
            self._weights[devices, quantize] = shapes(
                self.model,
                chat_transforms(self.model, mesh, quantize=quantize, keep_bf16=self.options.keep_bf16),
                placement=on_one_device if mesh is None else TensorParallel(mesh, self.model),
                saved_dtype=self._saved,
            )
        return self._weights[devices, quantize]

    def estimate(self, devices: int, quantize: str | None = None) -> MemoryEstimate:
        """The memory that the model takes on each of so many devices.

        Args:
            devices: their number.
            quantize: as for the constructor; None: as it was given there.
        """
        specs, whole, mesh = self._whole.decoder.specs, self._whole, self._mesh(devices)
        weights = self._held(devices, quantize or self.options.quantize)
        read = sum(map(held_bytes, weights.values())) if whole.accelerated else None
        shape = cache_shape(specs, self.options.slots, mesh)  # type: ignore[arg-type]  # an abstract mesh is enough
        slot = slot_memory(specs, shape, self.options.slots, whole.most_written, read)
        return memory_of(slot, self.options, weights, self._tower)

    def heads_copied(self, devices: int) -> int | None:
        """The key-value heads of a cache that every device holds whole, because it has too few; None: it is split."""
        mesh = self._mesh(devices)
        if mesh is None or devices == 1:
            return None
        shape = cache_shape(self._whole.decoder.specs, self.options.slots, mesh)  # type: ignore[arg-type]
        leaves = [leaf for layer in shape for name, leaf in layer.items() if name in WITH_POSITIONS]
        return min((leaf.shape[1] for leaf in leaves if leaf.sharding.is_fully_replicated), default=None)

    def use(self, devices: int, quantize: str | None = None) -> WeightUse:
        """What a forward reads of the weights on each device; arguments as for `estimate`."""
        return weight_use(self._whole.decoder, self.model, self._held(devices, quantize or self.options.quantize))

    def mesh(self, devices: Sequence[Any]) -> Mesh | None:
        """The mesh of the programs for these devices; None: one CPU."""
        return None if self._on_one_cpu else mesh_of(devices)

    def specs(self, programs: Programs) -> list[ProgramSpec]:
        """The programs that the app would have on the devices of `programs`."""
        runner = self._runner(programs.mesh)
        scores = self._label_scores(runner)
        runner.decoder.traced.keep(programs.bundle)
        return runner.specs(*([scores.spec()] if scores else []))

    def compile(self, devices: Sequence[Any], on_program: OnProgram = unreported) -> ChatPlan:
        """Compile every program for these devices."""
        programs = compile_as_planned(self.mesh(devices), self.specs, on_program)
        estimate = self.estimate(len(devices))
        return ChatPlan(
            weights=estimate.weights,
            resident=max([estimate.weights + estimate.cache, *(report.arguments for report in programs.reports)]),
            programs=tuple(programs.reports),
            too_large=programs.refused,
            interrupted=programs.interrupted,
            memory=estimate,
        )
