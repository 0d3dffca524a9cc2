"""torchax: its table of lowerings, its conversions between torch and jax, and what `runtime/operators.py` replaces."""

import functools
from typing import TYPE_CHECKING, Any

from hfjax_app.runtime.seams import Seam, needed, part, replace

if TYPE_CHECKING:
    import jax
    import torch

VERSIONS = {"torchax": "0.0.14.dev20261026"}
_OPERATORS = "runtime/operators.py"
SEAMS = (
    Seam(
        name="conversions",
        what="t2j, t2j_dtype and j2t_dtype of torchax.ops.mappings",
        without="models can't be loaded",
    ),
    Seam(
        name="operators on the host",
        what="no_dispatch of torch.utils._mode_utils, and DisableTorchFunction of torch._C",
        without="models with eyes can't be traced: parts of torch's operators are traced among tensors that are not",
    ),
    Seam(
        name="checks of values",
        what="torch.Tensor._is_all_true, which torch._check_tensor_all asks",
        without="text encoders that see a picture can't be traced: they check that each of its tokens has a place",
        file="runtime/host_tensors.py",
    ),
    Seam(
        name="upstream's lowerings",
        what="torchax.ops.ops_registry.all_aten_ops, which importing torchax.ops.jaten fills",
        without="convolutions can't be lowered: ours calls upstream's with other arguments",
    ),
    Seam(
        name="type_as",
        what="the method torchax.tensor.Tensor.type_as",
        without="upstream's method changes the tensor itself, and fails where the other tensor is a view",
        file=_OPERATORS,
    ),
    Seam(
        name="assignment",
        what="the methods torchax.view.NarrowInfo.update_tensor and torchax.tensor.Tensor.__setitem__",
        without="XLA on a CPU mixes up an update in place with what is computed of the same slice (CogView 4)",
        file=_OPERATORS,
    ),
    Seam(
        name="upsampling",
        what="lowerings of aten::upsample_nearest2d and its `vec` overload",
        without="upstream uses int64 indices, which jax truncates to int32 with a warning at every trace",
        file=_OPERATORS,
    ),
    Seam(
        name="bilinear scaling",
        what="lowering of aten::_upsample_bilinear2d_aa",
        without="upstream's fails; the positions of SigLIP 2's patches are scaled by it",
        file=_OPERATORS,
    ),
    Seam(
        name="grouped transposed convolution",
        what="lowering of aten::convolution",
        without="upstream mixes up the groups of a transposed convolution",
        file=_OPERATORS,
    ),
    Seam(
        name="gelu",
        what="lowering of aten::gelu",
        without="upstream uses erfc, which costs a CPU more than torch's erf",
        file=_OPERATORS,
    ),
    Seam(
        name="group norm",
        what="lowering of aten::native_group_norm",
        without="upstream rounds the mean to half precision before the subtraction",
        file=_OPERATORS,
    ),
    Seam(
        name="layer norm",
        what="lowering of aten::native_layer_norm",
        without="upstream rounds intermediate results to half precision",
        file=_OPERATORS,
    ),
    Seam(
        name="attention",
        what="lowering of torch.nn.functional.scaled_dot_product_attention",
        without="upstream divides over all pairs of query and key, and gives NaN where all keys are masked",
        file=_OPERATORS,
    ),
    Seam(
        name="grouped products",
        what="lowering of aten::_grouped_mm, used by mixtures of experts",
        without="upstream has none",
        file=_OPERATORS,
    ),
    Seam(
        name="pairs",
        what="lowerings of aten::unbind, aten::stack, aten::view_as_complex and aten::view_as_real",
        without="a TPU copies what rotary embeddings turn, see runtime/pairs.py",
        file=_OPERATORS,
    ),
    Seam(
        name="linear",
        what="lowering of torch.nn.functional.linear",
        without="upstream uses a plain product; a CPU reads some weights faster otherwise, see runtime/cpu/linear.py",
        file=_OPERATORS,
    ),
)


def array_of(tensor: "torch.Tensor") -> "jax.Array":
    """A tensor on the CPU as an array on the default device, which may share its memory; int64 becomes int32."""
    array: jax.Array = needed("torchax.ops.mappings:t2j")(tensor)
    return array


def is_check(function: Any) -> bool:
    """Whether a function of torch's asks for a check whether all values are true."""
    return getattr(function, "__name__", "") == "_is_all_true"


def on_host(function: Any, *arguments: Any, **options: Any) -> Any:
    """The result of a function of plain tensors, all parts of which torch computes, also inside a trace."""
    with needed("torch.utils._mode_utils:no_dispatch")(), needed("torch._C:DisableTorchFunction")():
        return function(*arguments, **options)


def jax_dtype(dtype: "torch.dtype") -> Any:
    """JAX's dtype of the same name."""
    return needed("torchax.ops.mappings:t2j_dtype")(dtype)


def torch_dtype(dtype: Any) -> "torch.dtype":
    """torch's dtype of the same name.

    Args:
        dtype: what jax.numpy.dtype takes.
    """
    import jax.numpy as jnp

    found: torch.dtype = needed("torchax.ops.mappings:j2t_dtype")(jnp.dtype(dtype))
    return found


def upstream(operator: Any, *arguments: Any) -> Any:
    """The result of torchax's own lowering of an aten operator, of arrays."""
    needed("torchax.ops.jaten:")
    return needed("torchax.ops.ops_registry:all_aten_ops")[operator].func(*arguments)


def replace_type_as(method: Any) -> None:
    """Put a method in the place of torchax's `type_as`."""
    replace("torchax.tensor:Tensor.type_as", method, without="tensors are cast by torchax's own `type_as`")


def replace_assignment(assigned: Any) -> None:
    """Put a function in the place of torchax's assignment to slices: of the array, the slices and the values."""
    upstream = _upstream_assignment()
    if upstream is None:
        return

    def update_tensor(info: Any, values: Any, array: Any) -> Any:
        if (slices := _slices(info.slices, array.ndim)) is None:
            return upstream[0](info, values, array)
        return assigned(array, slices, values)

    def set_item(tensor: Any, places: Any, values: Any) -> None:
        if (slices := _slices(places, tensor.ndim)) is None:
            upstream[1](tensor, places, values)
        else:
            tensor._elem = assigned(tensor._elem, slices, tensor._env.t2j_iso(values))

    replace(_OF_VIEWS, update_tensor, without=_ITS_OWN)
    replace(_OF_TENSORS, set_item, without=_ITS_OWN)


_OF_VIEWS, _OF_TENSORS = "torchax.view:NarrowInfo.update_tensor", "torchax.tensor:Tensor.__setitem__"
_ITS_OWN = "slices are assigned by torchax's own methods"


@functools.cache
def _upstream_assignment() -> tuple[Any, Any] | None:
    own = part(_OF_VIEWS, without=_ITS_OWN), part(_OF_TENSORS, without=_ITS_OWN)
    return None if None in own else own


def _slices(places: Any, axes: int) -> tuple[slice, ...] | None:
    """An index of slices without steps, one for each of the first axes; None for any other index."""
    index = places if isinstance(places, tuple) else (places,)
    if index.count(Ellipsis) == 1:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (axes + 1 - len(index)), *index[at + 1 :])
    return index if all(isinstance(each, slice) and each.step in (None, 1) for each in index) else None
