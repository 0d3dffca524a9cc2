"""What takes the places of a pipeline's scheduler, networks and noise while its own `__call__` runs or is traced."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any

import jax.numpy as jnp
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as torch_pytree
from torchax import interop
from torchax.tensor import Tensor
from torchax.view import View

from hfjax_app.images.networks import without_weights

PASSES = 3  # of a traced loop; some classes leave the last time out


class Ended(Exception):
    """Ends a pipeline's call with a value."""

    def __init__(self, value: Any):
        super().__init__()
        self.value = value


class Anything:
    """The output of a network whose values do not matter: each operation on it gives another one."""

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> "Anything":
        return self

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__
    __neg__ = __pow__ = __floordiv__ = __call__

    def __iter__(self) -> Iterator["Anything"]:
        return iter((self, self))

    def __len__(self) -> int:
        return 2

    def __bool__(self) -> bool:
        return False

    def __setitem__(self, *_: Any) -> None:
        pass

    def __gt__(self, _: Any) -> bool:
        return False

    __lt__ = __ge__ = __le__ = __gt__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> "Anything":
        return cls()


class Scale(float):
    """A guidance scale that a program takes as data: a value for comparisons, and a tensor for arithmetic.

    It is a float because torch's functions look for one. `float(scale)` fails: its value would be a constant.

    Args:
        value: decides comparisons.
        data: a tensor without dimensions.
        thresholds: gets what it is compared with.
    """

    def __new__(cls, value: float, data: torch.Tensor, thresholds: set[float]) -> "Scale":
        scale = super().__new__(cls, value)
        scale._value, scale.data, scale._thresholds = value, data, thresholds
        return scale

    _value: float
    data: torch.Tensor
    _thresholds: set[float]

    def __float__(self) -> float:
        raise TypeError("a guidance scale that is data of a program has no value")

    def _compared(self, other: Any) -> float:
        self._thresholds.add(float(other))
        return float(other)

    def __gt__(self, other: Any) -> bool:
        return self._value > self._compared(other)

    def __lt__(self, other: Any) -> bool:
        return self._value < self._compared(other)

    def __ge__(self, other: Any) -> bool:
        return self._value >= self._compared(other)

    def __le__(self, other: Any) -> bool:
        return self._value <= self._compared(other)

    def _with(self, compute: Callable[[Any], Any], other: Any) -> Any:
        if isinstance(other, Real):
            return Scale(compute(self._value), compute(self.data), self._thresholds)
        return compute(self.data) if isinstance(other, torch.Tensor) else NotImplemented

    def __add__(self, other: Any) -> Any:
        return self._with(lambda own: own + other, other)

    def __radd__(self, other: Any) -> Any:
        return self._with(lambda own: other + own, other)

    def __sub__(self, other: Any) -> Any:
        return self._with(lambda own: own - other, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(lambda own: other - own, other)

    def __mul__(self, other: Any) -> Any:
        return self._with(lambda own: own * other, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(lambda own: other * own, other)

    def __truediv__(self, other: Any) -> Any:
        return self._with(lambda own: own / other, other)


class TakesData(TorchFunctionMode):
    """While active, torch's functions take a `Scale` as its tensor, and tensors are made of traced numbers.

    What a pipeline computes of sizes alone stays in torch, so that it can depend on the values. Beside traced tensors
    it is made one of them.

    Args:
        is_traced: whether there are traced tensors.
    """

    def __init__(self, *, is_traced: bool = False):
        super().__init__()
        self._is_traced = is_traced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = torch_pytree.tree_leaves((args, kwargs))
        if self._is_traced and any(map(_is_plain, leaves)) and any(isinstance(leaf, Tensor | View) for leaf in leaves):
            args, kwargs = torch_pytree.tree_map(traced, (args, kwargs))
        if any(isinstance(leaf, Anything) for leaf in leaves):
            return Anything()
        if func is torch.tensor and not isinstance(args[0], torch.Tensor) and _has_data(args[0]):
            return _stacked(args[0]).to(kwargs.get("dtype") or torch.float32)
        if not any(isinstance(leaf, Scale) for leaf in leaves):
            return func(*args, **kwargs)
        if func is torch.full:
            size, scale = [*args, *kwargs.values()][:2]
            return scale.data.reshape([1] * len(size)).expand(*size).to(kwargs.get("dtype") or torch.float32)
        args, kwargs = torch_pytree.tree_map(
            lambda leaf: leaf.data if isinstance(leaf, Scale) else leaf, (args, kwargs)
        )
        return func(*args, **kwargs)


def _data(leaf: Any) -> Any:
    return leaf.data if isinstance(leaf, Scale) else leaf


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and leaf.device.type == "cpu"


def traced(leaf: Any) -> Any:
    """A tensor of torch's as one of the trace; a single number as it is."""
    if not _is_plain(leaf):
        return leaf
    return interop.torch_view(jnp.asarray(leaf.numpy())) if leaf.ndim else leaf.item()


def _has_data(value: Any) -> bool:
    return any(isinstance(leaf, Scale | torch.Tensor) for leaf in torch_pytree.tree_leaves(value))


def _stacked(value: Any) -> torch.Tensor:
    if isinstance(value, Sequence):
        return torch.stack([_stacked(each) for each in value])
    if isinstance(value, Scale):
        return value.data
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float32)


class Stepped(tuple[torch.Tensor, torch.Tensor]):
    """A scheduler's result, in each form in which pipelines take it apart."""

    @property
    def prev_sample(self) -> torch.Tensor:
        return self[0]

    @property
    def pred_original_sample(self) -> torch.Tensor:
        return self[1]


def stand_in(original: Any, **members: Any) -> Any:
    """A copy of an object, of a class of the same name, with other members: functions do not get the object."""
    changed, kind = copy.copy(original), type(original)
    own = {name: staticmethod(value) if inspect.isfunction(value) else value for name, value in members.items()}
    changed.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **own})
    for name in members:
        changed.__dict__.pop(name, None)
    return changed


class Noises(TorchFunctionMode):
    """While active, torch.randn gives tensors that are made for it.

    Args:
        make: makes one from the shape that is asked for.

    Attributes:
        shapes: of the tensors so far.
    """

    def __init__(self, make: Callable[[tuple[int, ...]], torch.Tensor]):
        super().__init__()
        self._make = make
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.randn:
            return func(*args, **(kwargs or {}))
        size = (kwargs or {}).get("size", args[0] if args else ())
        self.shapes.append(tuple(size) if isinstance(size, Sequence) else tuple(args))
        return self._make(self.shapes[-1])


def scheduler_like(real: Any, **members: Any) -> Any:
    """A scheduler's stand-in that keeps nothing, and neither scales a sample nor adds noise."""

    @functools.wraps(real.set_timesteps)
    def set_timesteps(*_: Any, **__: Any) -> None:
        pass

    usual: dict[str, Any] = {
        "set_timesteps": set_timesteps,
        "set_begin_index": lambda *_: None,
        "scale_model_input": lambda sample, *_, **__: sample,
        "add_noise": lambda sample, *_, **__: sample,
        "scale_noise": lambda sample, *_, **__: sample,
        "init_noise_sigma": 1.0,
        "order": 1,
        "timesteps": torch.ones(PASSES),
    }
    known = usual | members
    if "step" in known:
        known["step"] = functools.wraps(real.step)(known["step"])
    return stand_in(real, **known)


def having_read(pipeline: Any, pixels: Any) -> Any:
    """A pipeline's image processor that has read these pixels: pictures come in the size and values that it makes."""
    return stand_in(pipeline.image_processor, preprocess=lambda *_, **__: pixels)


class UnreadPicture:
    """In the place of an autoencoder's encoder: latents of one value in the shapes of its own.

    Args:
        vae: the autoencoder.
        value: see above.
    """

    def __init__(self, vae: Any, value: float):
        self._vae, self._value = without_weights(vae), value
        self._encoded = functools.lru_cache(self._encode)

    def encode(self, pixels: torch.Tensor, *_: Any, **__: Any) -> Any:
        """As the autoencoder's."""
        return self._encoded(tuple(pixels.shape))

    def _encode(self, shape: tuple[int, ...]) -> Any:
        encoded = self._vae.encode(torch.empty(shape, device="meta"))
        distribution = encoded.latent_dist
        encoded.latent_dist = type(distribution)(torch.full(distribution.parameters.shape, self._value))
        return encoded


class AnySize:
    """In the place of the sizes that a class keeps to: it has every one."""

    def __contains__(self, _: Any) -> bool:
        return True


class UncleanedText:
    """In the place of what cleans a class's prompts: they stay as they are."""

    @staticmethod
    def clean_text(text: str) -> str:
        return text


def usual_scale(thresholds: set[float]) -> Scale:
    return Scale(2.0, torch.tensor(2.0), thresholds)


def value_of(call: Callable[[], Any]) -> Any:
    """What a call ends with, or returns."""
    try:
        return call()
    except Ended as ended:
        return ended.value
