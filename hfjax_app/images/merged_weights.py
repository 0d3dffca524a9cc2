"""LoRAs merged into weights on the device, for the pictures that choose them: no merge compiles anything.

Weights are arguments of programs. A merge is a sum for each weight that a LoRA changes, by one program for each of
their shapes; other weights are shared. The last few merges are kept while there is memory. An int8 weight is multiplied
by its scales, changed and rounded again, once for each LoRA of a picture.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.lora import Factors, LoraFactors
from hfjax_app.limits import IMAGE_KEPT_MERGES
from hfjax_app.runtime.checkpoints.int8 import quantized, scale_of
from hfjax_app.runtime.memory import bytes_of, free_memory
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.warm_up import ProgramSpec, run_on_zeros

_MARGIN = 0.1  # of the free memory, which no merge takes

Choice = tuple[tuple[str, float], ...]  # names of LoRAs and their weights, in the order in which they are merged


@dataclass(frozen=True, kw_only=True)
class Part:
    """A network whose weights LoRAs may change.

    Attributes:
        weights: on the device.
        axes: the order of a parameter's axes on the device, by its name and its shape in torch.
    """

    weights: dict[str, Any]
    axes: Callable[[str, tuple[int, ...]], tuple[int, ...]]


class MergedWeights:
    """The networks' weights with any of the LoRAs. Thread-safe.

    Args:
        parts: by the pipeline's names for them.
        loras: that may be chosen.

    Raises:
        ModelUnavailable: a weight that one of them changes is neither in floating point on the device nor int8.

    Attributes:
        specs: the programs, which must have joined.
    """

    def __init__(self, parts: Mapping[str, Part], loras: Sequence[LoraFactors]):
        self._parts, self._loras = parts, {lora.name: lora for lora in loras}
        self._kept: OrderedDict[Choice, dict[str, Weights]] = OrderedDict()
        self._lock = threading.Lock()
        self._programs: dict[Any, Program] = {}
        self._kinds: dict[tuple[str, str, str], Any] = {}  # by LoRA, part and weight: what a program is compiled for
        self.specs: list[ProgramSpec] = []
        seen = set()
        for lora in loras:
            for name, changed in lora.parts.items():
                for key, factors in changed.items():
                    held: list[Any] = [parts[name].weights.get(each) for each in self._names(name, key)]
                    if held[-1] is None or not jnp.issubdtype(held[-1].dtype, jnp.floating):
                        raise ModelUnavailable(f"LoRA {lora.name!r}: {name}'s {key} can't be changed on this device")
                    axes = parts[name].axes(key, factors.shape)
                    places = tuple(map(_on_device, held))
                    kind = held[0].dtype, places, factors.shape, axes, factors.down.shape
                    self._kinds[lora.name, name, key] = kind
                    if kind not in seen:
                        seen.add(kind)
                        self.specs.append(self._spec(len(seen), kind, held, factors))

    def _names(self, part: str, key: str) -> list[str]:
        """The arrays on the device that hold a weight: itself, or itself in int8 and its scales."""
        weight = self._parts[part].weights.get(key)
        return [key] if weight is None or weight.dtype != jnp.int8 else [key, scale_of(key)]

    def _spec(self, number: int, kind: Any, arrays: Sequence[Any], factors: Factors) -> ProgramSpec:
        _, places, _, axes, _ = kind

        def merge(held: list[jax.Array], up: jax.Array, down: jax.Array, share: jax.Array) -> list[jax.Array]:
            change = jnp.matmul(up, down, precision=jax.lax.Precision.HIGHEST) * share
            change = change.reshape(factors.shape).transpose(axes)
            weight, *scales = held
            if not scales:
                return [(weight.astype(jnp.float32) + change).astype(weight.dtype)]
            return [*quantized(weight * scales[0][:, None] + change)]

        held = [
            jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)
            for array, place in zip(arrays, places, strict=True)
        ]
        up, down = (jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in (factors.up, factors.down))
        arguments = (held, up, down, jax.ShapeDtypeStruct((), jnp.float32))

        def join(program: Program) -> None:
            run_on_zeros(program, arguments)
            self._programs[kind] = program

        return ProgramSpec(
            name=f"merge_lora_{number}",
            function=merge,
            args=arguments,
            join=join,
            shardings=[*places],
            static=str((factors.shape, axes)),
        )

    @property
    def is_ready(self) -> bool:
        """Whether all programs have joined."""
        return len(self._programs) == len(self.specs)

    def of(self, choice: Choice) -> Mapping[str, Weights]:
        """The weights of each part with these LoRAs merged.

        Raises:
            ModelUnavailable: there is no memory for them.
        """
        if not choice:
            return {name: part.weights for name, part in self._parts.items()}
        with self._lock:
            if choice not in self._kept:
                self._make_room(choice)
                self._kept[choice] = self._merged(choice)
            self._kept.move_to_end(choice)
            return self._kept[choice]

    def _merged(self, choice: Choice) -> dict[str, Weights]:
        merged = {name: dict(part.weights) for name, part in self._parts.items()}
        for lora, share in choice:
            for name, changed in self._loras[lora].parts.items():
                for key, factors in changed.items():
                    program, names = self._programs[self._kinds[lora, name, key]], self._names(name, key)
                    held = [merged[name][each] for each in names]
                    there = [jax.device_put(each, _on_device(each)) for each in held]  # the same where it lies there
                    made = program(there, factors.up, factors.down, np.float32(share))
                    for each, old, new in zip(names, held, made, strict=True):
                        merged[name][each] = jax.device_put(new, old.sharding)
        return merged

    def _make_room(self, choice: Choice) -> None:
        changed = {(name, key) for lora, _ in choice for name, part in self._loras[lora].parts.items() for key in part}
        needed = bytes_of([self._parts[name].weights[each] for name, key in changed for each in self._names(name, key)])
        while True:
            free = free_memory()
            fits = free is None or needed <= free * (1 - _MARGIN)
            if fits and len(self._kept) < IMAGE_KEPT_MERGES:
                return
            if not self._kept:
                raise ModelUnavailable(
                    f"LoRA {choice[0][0]}: its merge takes {needed >> 20} MiB, and {(free or 0) >> 20} MiB are free "
                    f"(margin {_MARGIN:.0%})"
                )
            self._kept.popitem(last=False)  # pictures that are drawn with it hold it until they are done

    @property
    def bytes(self) -> int:
        """What the kept merges take besides the networks' own weights."""
        with self._lock:
            kept = [each for merged in self._kept.values() for each in merged.items()]
        own = {name: part.weights for name, part in self._parts.items()}
        return sum(bytes_of([w for key, w in weights.items() if w is not own[name].get(key)]) for name, weights in kept)


def _on_device(weight: jax.Array) -> Any:
    """Where a weight would lie on the devices; it may lie in the host's memory."""
    return weight.sharding.with_memory_kind("device")
