"""jax: compiled programs as bytes, which inputs a computation uses, and the names of cached programs."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from hfjax_app.runtime.seams import Moved, Seam, missing, moved, part

VERSIONS = {"jax": "0.10.2"}
SEAMS = (
    Seam(
        name="programs as bytes",
        what="`_executable._unloaded_executable` of jax.stages.Compiled, for the order of its devices",
        without="compiled programs are not kept in files: each start compiles, or reads jax's cache",
    ),
    Seam(
        name="programs from bytes",
        what="`_JaxPjrtUnpickler` of jax.experimental.serialize_executable, and the constructor of jax.stages.Compiled",
        without="compiled programs are not read from files: jax's own reader imports whatever a file names",
    ),
    Seam(
        name="names in programs",
        what="the names of jax's classes in a serialised program",
        without="a program that names others is neither kept nor read",
    ),
    Seam(
        name="inputs that are used",
        what="jax.interpreters.partial_eval.dce_jaxpr",
        without="all inputs count as used: plans count all weights, and models that ignore their states are not found",
    ),
    Seam(
        name="events of the compiler",
        what="the names of jax's monitoring events for compilations and for hits of its cache",
        without="compilations are not counted, and programs are not kept in files",
        file="runtime/compile_cache.py",
    ),
    Seam(
        name="sealed cache entries",
        what="the names of the entries of jax's persistent cache; damaged ones are removed before jax reads them",
        without="jax never replaces an entry, so an unreadable one is compiled again at every start",
        file="runtime/compile_cache.py",
    ),
)

COMPILED = "/jax/core/compile/backend_compile_duration"  # a program was compiled, or read from the persistent cache
CACHE_HIT = "/jax/compilation_cache/cache_hits"
SECONDS_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
CACHE_ENTRY = f"*-{'[0-9a-f]' * 64}-cache"  # a pattern of files

# What serialised programs name, and no more: for one CPU device, several, and TPUs that are not here.
ADMITTED = frozenset(
    {
        ("jax", "P"),
        ("jax._src.core", "ManualAxisType"),
        ("jax._src.core", "MemorySpace"),
        ("jax._src.core", "ShapedArray"),
        ("jax._src.interpreters.pxla", "AllArgsInfo"),
        ("jax._src.interpreters.pxla", "UnloadedMeshExecutable"),
        ("jax._src.layout", "Layout"),
        ("jax._src.linear_util", "DebugInfo"),
        ("jax._src.mesh", "AbstractDevice"),
        ("jax._src.mesh", "AbstractMesh"),
        ("jax._src.mesh", "AxisType"),
        ("jax._src.mesh", "Mesh"),
        ("jax._src.named_sharding", "_unpickle_named_sharding"),
        ("jax._src.sharding_impls", "_unpickle_single_device_sharding"),
        ("jax._src.stages", "ArgInfo"),
        ("jaxlib._jax", "DeviceList"),
        ("ml_dtypes", "bfloat16"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
    }
)

_READER = "jax.experimental.serialize_executable:_JaxPjrtUnpickler"
_NOT_READ = "compiled programs are not read from files"


def devices_of(compiled: Any) -> list[Any]:
    """The devices of a jax.stages.Compiled, in its order.

    Raises:
        Moved: they can't be found out.
    """
    try:
        return list(compiled._executable._unloaded_executable.device_list)
    except AttributeError:
        where = "jax.stages:Compiled._executable._unloaded_executable.device_list"
        missing(where, "compiled programs are not kept in files")
        raise moved(where) from None


def read_program(
    payload: bytes, in_tree: Any, out_tree: Any, devices: Sequence[Any], admit: Callable[[str, str], None]
) -> Any:
    """The jax.stages.Compiled of jax's bytes, for devices of one client.

    Args:
        payload: of jax.experimental.serialize_executable.serialize.
        in_tree, out_tree: pytrees, from the same.
        devices: in the order of `devices_of`.
        admit: called with the module and the name of each class before it is imported; raises an error for others.

    Raises:
        Moved: this release reads programs in another way.
    """
    import jax

    reader = part(_READER, without=_NOT_READ)
    if reader is None:
        raise moved(_READER)

    class Admitting(reader):  # type: ignore[misc, valid-type]
        def find_class(self, module: str, name: str) -> Any:
            admit(module, name)
            return super().find_class(module, name)

    try:
        unloaded, args_info, no_kwargs = Admitting(io.BytesIO(payload), devices[0].client, devices).load()
        return jax.stages.Compiled(unloaded.load(), [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)
    except TypeError as error:
        missing("jax.stages:Compiled, with these arguments,", _NOT_READ)
        raise Moved(f"this jax makes programs of other arguments: {error}") from error


def used_inputs(jaxpr: Any) -> list[bool]:
    """Whether the results of a jaxpr depend on each of its inputs."""
    eliminated = part("jax.interpreters.partial_eval:dce_jaxpr", without="all inputs of a computation count as used")
    if eliminated is None:
        return [True] * len(jaxpr.invars)
    _, used = eliminated(jaxpr, [True] * len(jaxpr.outvars))
    return list(used)
