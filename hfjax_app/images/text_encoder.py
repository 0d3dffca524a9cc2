"""Text encoders as programs. One of any kind is one program: token ids to what its pipeline reads of the results.

Decoders are text encoders today: they give the states of each layer, and logits and caches besides. The program has
only what the pipeline reads, so that the compiler leaves out the rest. Tokens are padded to the pipeline's own length.
CLIP's have `CompiledForward`, because their last layers can be left out. What a program made of the last tokens is
remembered, so that the next picture of a prompt needs no text encoder.
"""

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np
import torch
from torch.nn.functional import pad
from torch.utils import _pytree as torch_pytree
from torch.utils._pytree import TreeSpec
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hfjax_app.images.networks import fresh
from hfjax_app.limits import IMAGE_REMEMBERED_BYTES
from hfjax_app.runtime.host_tensors import HostTensors
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.seams.diffusers import with_lengths_as_data

# From a result to a part of it: each [False, name of an attribute] or [True, index or key].
Path = tuple[tuple[bool, Any], ...]


class CompiledEncoder:
    """A text encoder's forward as a compiled program for one row of tokens, from tensors to a view of its results.

    At first the results are no more than each token's number, and it is noted what is read of them; after `learn` the
    program is there. One that
    reads a picture beside its tokens has a program for each grid of pictures: whole numbers that are no tokens, such as
    a grid, are static.

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
        is_dry: whether results are such numbers although the program may be there.
        loras: that are merged into the weights.
    """

    def __init__(self, name: str, module: torch.nn.Module, weights: Any, programs: Programs):
        self._name, self._module, self.weights, self._programs = name, module, weights, programs
        self._seen: dict[str, tuple[Any, list[Any], list[Any], Any]] = {}
        self._unlearned: dict[str, None] = {}  # of these
        self._wanted: dict[Path, None] = {}
        self._paths: list[Path] = []  # of the programs' results
        # By what is static and the shapes; those of pictures are kept by the sizes of drawings that need them.
        self._compiled: WeakValueDictionary[str, Remembered] = WeakValueDictionary()
        self._results = Results()
        self.loras = ""
        self.longest = self.length = 0
        self.is_filled, self.is_dry = False, True
        self._takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
        self._adds_mask = False
        self.clip_skip, self.next_skip = 0, None  # a request's, which concern CLIP's alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's forward."""
        (args, kwargs), tokens = self._padded((args, kwargs))
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        ids = _ids(leaves)
        rest = [None if _is_data(leaf, ids) else leaf for leaf in leaves]
        rows = len(ids)
        by_row = [
            [_row(leaf, row, rows) if static is None else None for leaf, static in zip(leaves, rest, strict=True)]
            for row in range(rows)
        ]
        finish = partial(_finished, rows=rows, padded=self.longest, tokens=tokens)
        key = str((structure, rest, [None if array is None else array.shape for array in by_row[0]]))
        if self.is_dry:
            made = self._shapes(key, structure, rest, by_row[0])
            whole = torch_pytree.tree_map(lambda leaf: leaf and finish([_numbered(leaf)] * rows), made)
            return _Read(whole, (), self._wanted) if not isinstance(whole, torch.Tensor) else whole
        rows_read = by_row[:1] if self.is_filled else by_row
        program = self._compiled[key]
        results = [program(self.weights, self.loras, row) for row in rows_read]
        values = {}
        for i, path in enumerate(self._paths):
            parts = [torch.from_numpy(result[i]) for result in results]
            values[path] = finish(parts + [torch.zeros_like(parts[0])] * (rows - len(parts)))
        return values[()] if () in values else _Kept(values, ())

    def pad_to(self, length: int) -> None:
        """From now on tokens with a mask are padded to a length; what was noted before is forgotten."""
        self.length, self.longest = length, 0
        self.forget()
        self._wanted.clear()

    def forget(self) -> None:
        """Leave out from `learn` what was read since the last time."""
        self._seen.clear()
        self._unlearned.clear()

    def learn(self, name: str = "") -> "Remembered | None":
        """Compile the program for what was read since the last time. Without calls there is nothing to compile.

        Args:
            name: the end of the program's.

        Returns:
            The program, or the one that was there already; it is kept as long as this is.
        """
        if not self._unlearned:
            return None
        [key, *others] = self._unlearned
        assert not others, "its tokens have one shape"
        self._unlearned.clear()
        if (known := self._compiled.get(key)) is not None:
            return known
        structure, rest, shapes, _ = self._seen[key]
        wanted = self._paths = [*self._wanted] or [()]

        def forward(module: torch.nn.Module, tensors: list[Any]) -> list[torch.Tensor]:
            output = _called(module, structure, rest, tensors)
            results = [_at(output, path) for path in wanted]
            return [result.float() if result.is_floating_point() else result for result in results]

        static = str((structure, rest, wanted))
        function = self._pure(forward)
        program = self._programs.compile(self._name + name, function, self.weights, shapes, static=static)
        made = Remembered(program, self._results)
        self._compiled[key] = made
        return made

    def _padded(self, arguments: Any) -> tuple[Any, int]:
        """The arguments with tokens padded to `length`, and how many tokens there were."""
        ids = _ids(torch_pytree.tree_leaves(arguments))
        tokens = ids.shape[1]
        masked = arguments[1].get("attention_mask") is not None
        if not masked and self._takes_mask and (self._adds_mask or 0 < tokens < self.length):
            self._adds_mask = masked = True
            ones = torch.ones((len(ids), tokens), dtype=torch.int64)
            arguments = arguments[0], arguments[1] | {"attention_mask": ones}
        self.longest = max(self.longest, tokens, self.length if masked else 0)
        missing = self.longest - tokens
        if not missing or not masked:
            return arguments, tokens

        def longer(leaf: Any) -> Any:
            return pad(leaf, (0, missing)) if isinstance(leaf, torch.Tensor) and leaf.shape == ids.shape else leaf

        return torch_pytree.tree_map(longer, arguments), tokens

    def _shapes(self, key: str, structure: Any, rest: list[Any], row: list[Any]) -> Any:
        """The results' shapes, in the structure of the results."""
        self._unlearned[key] = None
        if key not in self._seen:
            specs = []
            arguments = [None if array is None else jax.ShapeDtypeStruct(array.shape, array.dtype) for array in row]

            def forward(module: torch.nn.Module, tensors: list[Any]) -> list[torch.Tensor]:
                output = _called(module, structure, rest, tensors)
                leaves, spec = torch_pytree.tree_flatten(output)
                specs.append((spec, [isinstance(leaf, torch.Tensor) for leaf in leaves]))
                return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

            shapes = iter(jax.eval_shape(self._pure(forward), self.weights, arguments))
            spec, tensors = specs[0]
            leaves = [next(shapes) if is_tensor else None for is_tensor in tensors]
            self._seen[key] = structure, rest, arguments, torch_pytree.tree_unflatten(leaves, spec)
        return self._seen[key][3]

    def _pure(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the module that can be traced for prompts of any length."""
        return pure_function(with_lengths_as_data(fresh(self._module)), forward)


class Results(OrderedDict[Any, list[np.ndarray]]):
    """The last results of a text encoder's programs, by what they were made of."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._programs = 0, 0

    def number(self) -> int:
        """Of a program whose results are kept here."""
        self._programs += 1
        return self._programs

    def keep(self, key: Any, found: list[np.ndarray]) -> None:
        """Add a result; the oldest ones go, where they are too many."""
        self[key] = found
        self._bytes += sum(result.nbytes for result in found)
        while self._bytes > IMAGE_REMEMBERED_BYTES and len(self) > 1:
            _, oldest = self.popitem(last=False)
            self._bytes -= sum(result.nbytes for result in oldest)


class Remembered:
    """A program of a text encoder whose last results are kept in the host's memory. Not thread-safe.

    Args:
        program: from weights and arguments to arrays.
        results: of the text encoder's programs; None: it has one program.
    """

    def __init__(self, program: Program, results: Results | None = None):
        self._program, self._results = program, Results() if results is None else results
        self._number = self._results.number()

    def __call__(self, weights: Any, loras: str, arguments: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """The program's results, which the caller may change.

        Args:
            weights: of the text encoder.
            loras: that are merged into them, which tell weights apart.
            arguments: the program's.
        """
        key = self._number, loras, *(None if array is None else (array.shape, _digest(array)) for array in arguments)
        if key not in self._results:
            self._results.keep(key, [np.asarray(result) for result in self._program(weights, arguments)])
        self._results.move_to_end(key)
        return [np.array(result) for result in self._results[key]]


class CompiledForward:
    """A torch module's forward as compiled programs, one for each shape of its arguments, from tensors to tensors.

    Args:
        name: of the programs.
        module: on the CPU; it is not changed.
        weights: its weights on the device, or for planned programs their shapes. It computes in their dtype; results
            are float32.
        programs: compiles.
        skips: whether the module is a text encoder of CLIP's whose last layers can be left out.

    Attributes:
        clip_skip: how many of them are. It is an argument of the program, so that a request compiles nothing.
    """

    def __init__(self, name: str, module: torch.nn.Module, weights: Any, programs: Programs, *, skips: bool = False):
        self._name, self._module, self.weights, self._programs = name, module, weights, programs
        self._skips, self.clip_skip, self._results = skips, 0, Results()
        self.next_skip: int | None = None  # of the next call alone
        self._compiled: dict[Any, tuple[Remembered, Any, list[Any]]] = {}  # with the structure and shapes of results
        self.longest = 0  # tokens of the longest sequence so far
        self.loras = ""  # that are merged into the weights
        self._first: tuple[Any, Any] = (), {}  # further arguments of the first call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's forward. Compiles at the first arguments of a shape."""
        if not self._compiled:
            self._first = args[1:], kwargs
        if self._skips:
            skip, self.next_skip = self.clip_skip if self.next_skip is None else self.next_skip, None
            kwargs = kwargs | {"clip_skip": torch.tensor(skip)}
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        arrays = [as_array(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        shapes = [None if array is None else (array.shape, str(array.dtype)) for array in arrays]
        key = str((structure, rest, shapes))
        if key not in self._compiled:
            self.longest = max(
                [self.longest, *(array.shape[-1] for array in arrays if array is not None and array.ndim)]
            )
            self._compiled[key] = self._compile(structure, rest, arrays)
        program, result_spec, made = self._compiled[key]
        if self._programs.planned:  # zeros are enough: the caller reads shapes only
            results = [torch.from_numpy(np.zeros(leaf.shape, leaf.dtype)) for leaf in made]
        else:
            results = [torch.from_numpy(leaf) for leaf in program(self.weights, self.loras, arrays)]
        return torch_pytree.tree_unflatten(results, result_spec)

    def again(self, ids: torch.Tensor) -> Any:
        """As the first call, with other token ids."""
        args, kwargs = self._first
        return self(ids, *args, **kwargs)

    def _compile(self, structure: Any, rest: list[Any], arrays: list[Any]) -> tuple[Remembered, Any, list[Any]]:
        specs: list[TreeSpec] = []  # of the results; a trace fills it

        def forward(module: torch.nn.Module, tensors: list[Any]) -> list[torch.Tensor]:
            leaves = [plain if tensor is None else tensor for tensor, plain in zip(tensors, rest, strict=True)]
            args, kwargs = torch_pytree.tree_unflatten(leaves, structure)
            call = partial(_without_last_layers, module) if self._skips else module
            results, spec = torch_pytree.tree_flatten(call(*args, **kwargs))
            specs.append(spec)
            return [result.float() if result.is_floating_point() else result for result in results]

        name = self._name if not self._compiled else f"{self._name}_{len(self._compiled) + 1}"
        function = pure_function(self._module, forward)
        program = self._programs.compile(name, function, self.weights, arrays, static=str((structure, rest)))
        made: list[Any] = []
        bundle = self._programs.bundle
        known = None if bundle is None else bundle.facts.get(name)  # by an earlier process
        if self._programs.planned or (not specs and known is None):  # it won't run, or was loaded without being traced
            made = jax.eval_shape(function, self.weights, arrays)
        spec = specs[0] if specs else torch_pytree.treespec_loads(known)
        if bundle is not None and known is None:
            bundle.keep_facts(bundle.facts | {name: torch_pytree.treespec_dumps(spec)})
        return Remembered(program, self._results), spec, made


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
    """Numbers in the place of a text encoder's results; notes which tensors are read.

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


def _without_last_layers(encoder: Any, *args: Any, clip_skip: torch.Tensor, **kwargs: Any) -> Any:
    """A text encoder's results as if it ended `clip_skip` layers earlier, as diffusers' `encode_prompt` has it."""
    output = encoder(*args, output_hidden_states=True, **kwargs)
    states = torch.stack(output.hidden_states)
    state = torch.index_select(states, 0, (len(states) - 1 - clip_skip).reshape(1)).squeeze(0)
    # its own last state where none is left out, so that such pictures stay the same to the last bit
    last = torch.where(clip_skip == 0, output.last_hidden_state, encoder.final_layer_norm(state))
    return BaseModelOutputWithPooling(last_hidden_state=last, pooler_output=output.pooler_output)


def _called(module: torch.nn.Module, structure: Any, rest: list[Any], tensors: list[Any]) -> Any:
    leaves = [plain if tensor is None else tensor for tensor, plain in zip(tensors, rest, strict=True)]
    args, kwargs = torch_pytree.tree_unflatten(leaves, structure)
    is_static = any(isinstance(leaf, torch.Tensor) for leaf in rest)
    with HostTensors() if is_static else nullcontext():
        return module(*args, **kwargs)


def _ids(leaves: Iterable[Any]) -> torch.Tensor:
    """Token ids [rows, tokens] among the arguments of a call, which come first."""
    return next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _is_data(leaf: Any, ids: torch.Tensor) -> bool:
    """Whether an argument is data of a program; whole numbers that are not of the tokens are static."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.shape[-1:] == ids.shape[-1:])


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(array.tobytes()).digest()


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


def _numbered(leaf: Any) -> torch.Tensor:
    """A result of a shape: zeros, or for states [1, tokens, width] or [tokens, 1, width] each token's number."""
    kind = torch.float32 if np.issubdtype(leaf.dtype, np.floating) or leaf.dtype.kind == "V" else torch.int64
    if len(leaf.shape) != 3:
        return torch.zeros((), dtype=kind).expand(leaf.shape)
    one, other, _ = leaf.shape
    return torch.arange(one * other, dtype=kind).reshape(one, other, 1).expand(leaf.shape)


def _finished(parts: list[torch.Tensor], *, rows: int, padded: int, tokens: int) -> torch.Tensor:
    """The rows of a result side by side, without what padding added."""
    whole = torch.cat(parts) if rows > 1 else parts[0]
    return whole[:, :tokens] if whole.ndim > 1 and whole.shape[1] == padded else whole


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor in the dtypes that programs take."""
    if tensor.is_floating_point():
        return tensor.detach().to(torch.float32).numpy()
    return tensor.numpy() if tensor.dtype == torch.bool else tensor.to(torch.int32).numpy()
