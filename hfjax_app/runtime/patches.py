"""Every place where a library is changed from outside, or where its private parts are relied on.

The code stays where it is needed; this is the list of it. tests/runtime/test_patches.py compares each version with the
one that is installed, so that an upgrade looks at each entry again, and checks that the library still behaves as `why`
says: a patch whose check fails is no longer needed, or no longer reaches what it changes.
"""

from dataclasses import dataclass

TRANSFORMERS = "5.23.0"
TORCHAX = "0.0.14.dev20261026"
JAX = "0.10.2"
GRADIO = "6.31.0"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change.

    Args:
        name: unique, for its check.
        library: as it is called on PyPI.
        version: of the library, for which the change was written or looked at again.
        file: where the code is, below hfjax_app/.
        what: is changed or relied on.
        why: what the library does by itself.
    """

    name: str
    library: str
    version: str
    file: str
    what: str
    why: str


PATCHES = (
    Patch(
        name="sets in order",
        library="transformers",
        version=TRANSFORMERS,
        file="runtime/set_order.py",
        what="`set` in the modules of a model's classes is a set that is iterated in order",
        why="models are traced in the order of sets of strings, which differs from process to process",
    ),
    Patch(
        name="buffers computed again",
        library="transformers",
        version=TRANSFORMERS,
        file="runtime/checkpoints/empty_model.py",
        what="the private mark `_is_hf_initialized` of modules with buffers that no checkpoint holds",
        why="`initialize_weights` leaves out marked modules, and their buffers were computed in the model's dtype",
    ),
    Patch(
        name="one model at a time",
        library="transformers",
        version=TRANSFORMERS,
        file="runtime/tracing_lock.py",
        what="models are made and traced by one thread at a time",
        why="making a model changes torch's default dtype for the whole process meanwhile",
    ),
    Patch(
        name="sealed cache entries",
        library="jax",
        version=JAX,
        file="runtime/compile_cache.py",
        what="the names of the entries of jax's persistent cache; damaged ones are removed before jax looks",
        why="jax never replaces an entry, so that one that can't be read is compiled again at every start",
    ),
    Patch(
        name="upsampling",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowerings of aten::upsample_nearest2d and its `vec` overload",
        why="upstream asks for int64 indices, which jax cuts to int32 with a warning at every trace",
    ),
    Patch(
        name="grouped transposed convolution",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::convolution; it also takes kernels that are kept transformed",
        why="upstream mixes up the groups of a transposed convolution",
    ),
    Patch(
        name="gelu",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::gelu",
        why="upstream takes erfc, which costs a CPU more than torch's erf",
    ),
    Patch(
        name="group norm",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::native_group_norm",
        why="upstream rounds the mean to half precision before it is taken off",
    ),
    Patch(
        name="layer norm",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::native_layer_norm",
        why="upstream rounds to half precision in between",
    ),
    Patch(
        name="attention",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of torch.nn.functional.scaled_dot_product_attention",
        why="upstream divides over all pairs of query and key, and gives NaN where a query may look nowhere",
    ),
    Patch(
        name="grouped products",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::_grouped_mm, which mixtures of experts use",
        why="upstream has none",
    ),
    Patch(
        name="linear",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of torch.nn.functional.linear",
        why="upstream's is a plain product; a CPU reads some weights faster otherwise, see runtime/cpu/linear.py",
    ),
    Patch(
        name="type_as",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="the method torchax.tensor.Tensor.type_as",
        why="upstream's changes the tensor itself, and fails where the other one is a view",
    ),
    Patch(
        name="no downloads",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="processing_utils.async_ssrf_protected_download refuses",
        why="an address in a file's place is fetched, whole into memory",
    ),
    Patch(
        name="nothing kept for links",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="SessionState._update_value_in_config does nothing",
        why="the last values of each session are kept, for links to a page's values",
    ),
    Patch(
        name="only uploaded files",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="Blocks.has_launched of a mounted page",
        why="whether a file may be taken is only asked on pages that were launched",
    ),
    Patch(
        name="a waiting line for each kind",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="the class of Blocks._queue",
        why="the queue counts the events of all kinds together, so that one kind closes it for all",
    ),
    Patch(
        name="a queue that rests",
        library="gradio",
        version=GRADIO,
        file="studio/page.py",
        what="Blocks._queue.sleep_when_free",
        why="the queue looks for work every millisecond",
    ),
    Patch(
        name="limits of a mounted page",
        library="gradio",
        version=GRADIO,
        file="studio/page.py",
        what="Blocks.max_threads and Blocks.state_session_capacity",
        why="only `launch` takes them as arguments, and the page is mounted",
    ),
    Patch(
        name="scripts first",
        library="gradio",
        version=GRADIO,
        file="studio/scripts.py",
        what="the environment of the page's templates has an extension that puts scripts first",
        why="what `head` brings comes after Gradio's modules, which keep the browser's functions for themselves",
    ),
    Patch(
        name="frames",
        library="gradio",
        version=GRADIO,
        file="studio/frames.js",
        what="requestAnimationFrame, where the status tracker asks",
        why="the tracker counts an event's seconds in every frame, and goes on after it has left the page",
    ),
    Patch(
        name="smaller pictures",
        library="gradio",
        version=GRADIO,
        file="studio/pictures.js",
        what="createImageBitmap, where the picture editor decodes a file",
        why="the editor sends its whole canvas at the size of the file that was put in",
    ),
    Patch(
        name="pictures that are forgotten",
        library="gradio",
        version=GRADIO,
        file="studio/picture_input.py",
        what="ImageEditor.accept_blobs",
        why="what editors have sent is kept for ever, with any number of layers",
    ),
    Patch(
        name="made files",
        library="gradio",
        version=GRADIO,
        file="studio/files.py",
        what="a set of our own among Blocks.temp_file_sets, which is iterated over a copy",
        why="the sweep goes through the sets themselves, and ends where a file is made meanwhile",
    ),
)
