"""A text encoder of any kind as one program: token ids to what its pipeline reads of the results.

Decoders are text encoders today: they give the states of each layer, and logits and caches besides. The program has
only what the pipeline reads, so that the compiler leaves out the rest. Tokens are padded to the pipeline's own length.
`prompt_conditioning.py` has CLIP's, whose last layers can be left out.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.functional import pad
from torch.utils import _pytree as torch_pytree

from hfjax_app.images.networks import fresh
from hfjax_app.images.remembered import Remembered
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.diffusers import with_lengths_as_data

# From a result to a part of it: each [False, name of an attribute] or [True, index or key].
Path = tuple[tuple[bool, Any], ...]


class CompiledEncoder:
    """A text encoder's forward as a compiled program for one row of tokens, from tensors to a view of its results.

    At first the results are zeros and it is noted what is read of them; after `learn` the program is there.

    Args:
        name: of the program.
        module: without weights, adapted to their layout; it is not changed.
        weights: its weights on the device, or for planned programs their shapes. It computes in their dtype; results
            are float32.
        programs: compiles.

    Attributes:
        longest: tokens of the program.
        length: to which tokens are padded, with a mask; 0: they are not.
        is_filled: whether only the first row of tokens is read; the others' results are zeros then.
        is_dry: whether results are zeros although the program is there.
        loras: that are merged into the weights.
    """

    def __init__(self, name: str, module: torch.nn.Module, weights: Any, programs: Programs):
        self._name, self._module, self.weights, self._programs = name, module, weights, programs
        self._seen: dict[str, tuple[Any, list[Any], list[Any], Any]] = {}
        self._wanted: dict[Path, None] = {}
        self._paths: list[Path] = []  # of the program's results
        self._program: Remembered | None = None
        self.loras = ""
        self.longest = self.length = 0
        self.is_filled = self.is_dry = False
        self._takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
        self._adds_mask = False
        self.clip_skip, self.next_skip = 0, None  # a request's, which concern CLIP's alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's forward."""
        (args, kwargs), tokens = self._padded((args, kwargs))
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        rows = next((len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)), 1)  # token ids come first
        by_row = [[_row(leaf, row, rows) for leaf in leaves] for row in range(rows)]
        finish = partial(_finished, rows=rows, padded=self.longest, tokens=tokens)
        if self._program is None or self.is_dry:
            made = self._shapes(structure, rest, by_row[0])
            whole = torch_pytree.tree_map(lambda leaf: leaf and finish([_zeros(leaf)] * rows), made)
            return _Read(whole, (), self._wanted) if not isinstance(whole, torch.Tensor) else whole
        rows_read = by_row[:1] if self.is_filled else by_row
        results = [self._program(self.weights, self.loras, row) for row in rows_read]
        values = {}
        for i, path in enumerate(self._paths):
            parts = [torch.from_numpy(result[i]) for result in results]
            values[path] = finish(parts + [torch.zeros_like(parts[0])] * (rows - len(parts)))
        return values[()] if () in values else _Kept(values, ())

    def pad_to(self, length: int) -> None:
        """From now on tokens with a mask are padded to a length; what was noted before is forgotten."""
        self.length, self.longest = length, 0
        self._seen.clear()
        self._wanted.clear()

    def learn(self) -> None:
        """Compile the program for what was read so far. Without calls there is nothing to compile."""
        if not self._seen:
            return
        [(structure, rest, arrays, _), *others] = self._seen.values()
        assert not others, "its tokens have one shape"
        wanted = self._paths = [*self._wanted] or [()]

        def forward(module: torch.nn.Module, tensors: list[Any]) -> list[torch.Tensor]:
            output = _called(module, structure, rest, tensors)
            results = [_at(output, path) for path in wanted]
            return [result.float() if result.is_floating_point() else result for result in results]

        static = str((structure, rest, wanted))
        function = pure_function(with_lengths_as_data(fresh(self._module)), forward)
        self._program = Remembered(self._programs.compile(self._name, function, self.weights, arrays, static=static))
        if self._programs.planned:
            self.is_dry = True

    def _padded(self, arguments: Any) -> tuple[Any, int]:
        """The arguments with tokens padded to `length`, and how many tokens there were."""
        leaves = [leaf for leaf in torch_pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        tokens = max((leaf.shape[1] for leaf in leaves if leaf.ndim > 1), default=0)
        masked = arguments[1].get("attention_mask") is not None
        if not masked and self._takes_mask and (self._adds_mask or 0 < tokens < self.length):
            self._adds_mask = masked = True
            ones = torch.ones((len(leaves[0]), tokens), dtype=torch.int64)
            arguments = arguments[0], arguments[1] | {"attention_mask": ones}
        self.longest = max(self.longest, tokens, self.length if masked else 0)
        missing = self.longest - tokens
        if not missing or not masked:
            return arguments, tokens

        def longer(leaf: Any) -> Any:
            return pad(leaf, (0, missing)) if isinstance(leaf, torch.Tensor) and leaf.ndim == 2 else leaf

        return torch_pytree.tree_map(longer, arguments), tokens

    def _shapes(self, structure: Any, rest: list[Any], row: list[Any]) -> Any:
        """The results' shapes as meta tensors, in the structure of the results."""
        key = str((structure, rest, [None if array is None else array.shape for array in row]))
        if key not in self._seen:
            specs = []

            def forward(module: torch.nn.Module, tensors: list[Any]) -> list[torch.Tensor]:
                output = _called(module, structure, rest, tensors)
                leaves, spec = torch_pytree.tree_flatten(output)
                specs.append((spec, [isinstance(leaf, torch.Tensor) for leaf in leaves]))
                return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

            shapes = iter(
                jax.eval_shape(pure_function(with_lengths_as_data(fresh(self._module)), forward), self.weights, row)
            )
            spec, tensors = specs[0]
            leaves = [next(shapes) if is_tensor else None for is_tensor in tensors]
            self._seen[key] = structure, rest, row, torch_pytree.tree_unflatten(leaves, spec)
        return self._seen[key][3]


class _Parts(ABC):
    """Results whose attributes and items are parts by their path."""

    @abstractmethod
    def _part(self, *step: Any) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def __getattr__(self, name: str) -> Any:
        return self._part(False, name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return tuple(self._part(True, i) for i in range(*key.indices(len(self))))
        return self._part(True, key)

    def __iter__(self) -> Iterator[Any]:
        return (self._part(True, i) for i in range(len(self)))


class _Read(_Parts):
    """Zeros in the place of a text encoder's results; notes which tensors are read.

    Args:
        value: a result, not a tensor.
        path: to it.
        wanted: gets the paths of the tensors.
    """

    def __init__(self, value: Any, path: Path, wanted: dict[Path, None]):
        self._value, self._path, self._wanted = value, path, wanted

    def _part(self, *step: Any) -> Any:
        path = (*self._path, step)
        value = _at(self._value, (step,))
        if not isinstance(value, torch.Tensor):
            return value if value is None else _Read(value, path, self._wanted)
        self._wanted[path] = None
        return value

    def __len__(self) -> int:
        return len(self._value)


class _Kept(_Parts):
    """A text encoder's results, as far as they were read at first: `_Read` with values."""

    def __init__(self, values: dict[Path, torch.Tensor], path: Path):
        self._values, self._path = values, path

    def _part(self, *step: Any) -> Any:
        path = (*self._path, step)
        if path in self._values:
            return self._values[path]
        return _Kept(self._values, path) if any(known[: len(path)] == path for known in self._values) else None

    def __len__(self) -> int:
        at = len(self._path)
        return 1 + max(int(path[at][1]) for path in self._values if path[:at] == self._path and path[at][0])


def _called(module: torch.nn.Module, structure: Any, rest: list[Any], tensors: list[Any]) -> Any:
    leaves = [plain if tensor is None else tensor for tensor, plain in zip(tensors, rest, strict=True)]
    args, kwargs = torch_pytree.tree_unflatten(leaves, structure)
    return module(*args, **kwargs)


def _at(value: Any, path: Path) -> Any:
    for is_index, key in path:
        value = value[key] if is_index else getattr(value, key)
    return value


def _row(leaf: Any, row: int, rows: int) -> np.ndarray | None:
    """A row of an argument in the dtypes that programs take; None where it is no tensor."""
    if not isinstance(leaf, torch.Tensor):
        return None
    part = leaf[row : row + 1] if leaf.shape[:1] == (rows,) else leaf
    if part.is_floating_point():
        return part.detach().to(torch.float32).numpy()
    return part.numpy() if part.dtype == torch.bool else part.to(torch.int32).numpy()


def _zeros(leaf: Any) -> torch.Tensor:
    kind = torch.float32 if np.issubdtype(leaf.dtype, np.floating) or leaf.dtype.kind == "V" else torch.int64
    return torch.zeros((), dtype=kind).expand(leaf.shape)


def _finished(parts: list[torch.Tensor], *, rows: int, padded: int, tokens: int) -> torch.Tensor:
    """The rows of a result side by side, without what padding added."""
    whole = torch.cat(parts) if rows > 1 else parts[0]
    return whole[:, :tokens] if whole.ndim > 1 and whole.shape[1] == padded else whole


class Truncations:
    """Notes the texts that a tokenizer cuts, or would cut, and at how many tokens.

    Args:
        tokenizer: it is not changed.

    Attributes:
        tokenizer: a copy that is watched.
        seen: (text, tokens) of each call since it was cleared, for each of its texts.
    """

    def __init__(self, tokenizer: Any):
        kind: Any = type(tokenizer)
        self.seen: list[tuple[str, int]] = []

        def call(own: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("truncation"):
                text: Any = args[0] if args else kwargs.get("text")
                limit = kwargs.get("max_length") or own.model_max_length
                self.seen.extend((str(each), limit) for each in ([text] if isinstance(text, str) else text))
            return kind.__call__(own, *args, **kwargs)

        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__call__": call})

    def cut(self, prompt: str) -> str:
        """The end of a prompt that the first call with it left out, without what a template has behind it."""
        if not self.seen:
            return ""
        text, limit = next((seen for seen in self.seen if prompt in seen[0]), self.seen[0])
        begin, at = begin_of_rest(self.tokenizer, text, limit), text.rfind(prompt)
        if begin >= len(text):
            return ""
        return (text[begin:] if at < 0 else prompt[max(begin - at, 0) :]).strip()


def begin_of_rest(tokenizer: Any, text: str, limit: int) -> int:
    """Where in a text what a tokenizer leaves out begins: its length, where it leaves out nothing.

    Args:
        tokenizer: see above; one in Python has no offsets, so that it is asked for parts of the text.
        text: without padding.
        limit: of tokens, with those that it adds.
    """
    options = {"truncation": False, "padding": False, "verbose": False}
    if not tokenizer.is_fast:
        lengths = range(len(text) + 1)
        return bisect_right(lengths, limit, key=lambda end: len(tokenizer(text[:end], **options).input_ids)) - 1
    whole = tokenizer(text, **options, return_offsets_mapping=True)
    if len(whole.input_ids) <= limit:
        return len(text)
    special = [i for i, (begin, end) in enumerate(whole.offset_mapping) if begin == end]
    closing = sum(1 for i in special if i > 0)  # the end token takes the last position
    return int(whole.offset_mapping[limit - closing][0])
