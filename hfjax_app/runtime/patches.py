"""The list of all places that change a library from outside or use its private parts.

The code is where it is used. tests/runtime/test_patches.py compares each version with the installed one, so that an
upgrade requires a review of each entry. It also checks that the library still behaves as `why` says: a patch whose
check fails is no longer needed, or no longer works. Does not apply the patches.
"""

from dataclasses import dataclass

TRANSFORMERS = "5.23.0"
TORCHAX = "0.0.14.dev20261026"
JAX = "0.10.2"
GRADIO = "6.31.0"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change of a library.

    Args:
        name: unique; the check has the same name.
        library: its name on PyPI.
        version: the library's version for which the change was written or last reviewed.
        file: the path of the code, below hfjax_app/.
        what: the part of the library that is changed or used.
        why: what the library does without the change.
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
        what="`set` in the modules of a model's classes is a set with a fixed order of iteration",
        why="models are traced in the order of sets of strings, which differs from process to process",
    ),
    Patch(
        name="buffers computed again",
        library="transformers",
        version=TRANSFORMERS,
        file="runtime/checkpoints/empty_model.py",
        what="the private attribute `_is_hf_initialized` of modules with buffers that no checkpoint contains",
        why="`initialize_weights` skips modules with this attribute, whose buffers are then in the model's dtype",
    ),
    Patch(
        name="one model at a time",
        library="transformers",
        version=TRANSFORMERS,
        file="runtime/tracing_lock.py",
        what="models are built and traced by one thread at a time",
        why="building a model changes torch's default dtype for the whole process",
    ),
    Patch(
        name="sealed cache entries",
        library="jax",
        version=JAX,
        file="runtime/compile_cache.py",
        what="the names of the entries of jax's persistent cache; damaged ones are removed before jax reads them",
        why="jax never replaces an entry, so an unreadable one is compiled again at every start",
    ),
    Patch(
        name="upsampling",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowerings of aten::upsample_nearest2d and its `vec` overload",
        why="upstream uses int64 indices, which jax truncates to int32 with a warning at every trace",
    ),
    Patch(
        name="grouped transposed convolution",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::convolution",
        why="upstream mixes up the groups of a transposed convolution",
    ),
    Patch(
        name="gelu",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::gelu",
        why="upstream uses erfc, which costs a CPU more than torch's erf",
    ),
    Patch(
        name="group norm",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::native_group_norm",
        why="upstream rounds the mean to half precision before the subtraction",
    ),
    Patch(
        name="layer norm",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::native_layer_norm",
        why="upstream rounds intermediate results to half precision",
    ),
    Patch(
        name="attention",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of torch.nn.functional.scaled_dot_product_attention",
        why="upstream divides over all pairs of query and key, and gives NaN where all keys are masked",
    ),
    Patch(
        name="grouped products",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of aten::_grouped_mm, used by mixtures of experts",
        why="upstream has none",
    ),
    Patch(
        name="linear",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="lowering of torch.nn.functional.linear",
        why="upstream uses a plain product; a CPU reads some weights faster otherwise, see runtime/cpu/linear.py",
    ),
    Patch(
        name="type_as",
        library="torchax",
        version=TORCHAX,
        file="runtime/operators.py",
        what="the method torchax.tensor.Tensor.type_as",
        why="upstream's method changes the tensor itself, and fails where the other tensor is a view",
    ),
    Patch(
        name="no downloads",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="processing_utils.async_ssrf_protected_download raises an error",
        why="a URL in place of a file is downloaded into memory",
    ),
    Patch(
        name="nothing kept for links",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="SessionState._update_value_in_config does nothing",
        why="the last values of each session are stored, for links to a page's values",
    ),
    Patch(
        name="only uploaded files",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="Blocks.has_launched of a mounted page",
        why="access to files is checked only on pages that were launched",
    ),
    Patch(
        name="a waiting line for each kind",
        library="gradio",
        version=GRADIO,
        file="studio/request_hardening.py",
        what="the class of Blocks._queue",
        why="the queue counts the events of all kinds together, so one kind can fill it for all",
    ),
    Patch(
        name="a queue that rests",
        library="gradio",
        version=GRADIO,
        file="studio/page.py",
        what="Blocks._queue.sleep_when_free",
        why="the queue polls every millisecond",
    ),
    Patch(
        name="limits of a mounted page",
        library="gradio",
        version=GRADIO,
        file="studio/page.py",
        what="Blocks.max_threads and Blocks.state_session_capacity",
        why="only `launch` has these arguments, and the page is mounted",
    ),
    Patch(
        name="scripts first",
        library="gradio",
        version=GRADIO,
        file="studio/scripts.py",
        what="an extension of the page's template environment puts our scripts and styles first, for the link preview",
        why="the contents of `head` come after Gradio's modules, which save references to the browser's functions",
    ),
    Patch(
        name="a compressed page",
        library="gradio",
        version=GRADIO,
        file="server/gradio_routes.py",
        what="the page itself is compressed",
        why="only answers to addresses with an extension are",
    ),
    Patch(
        name="closed tabs",
        library="gradio",
        version=GRADIO,
        file="studio/loading_panel.py",
        what="components of tabs that are not open have `visible=False`",
        why="a page loads the code of every visible component, in whatever tab",
    ),
    Patch(
        name="a chosen theme",
        library="gradio",
        version=GRADIO,
        file="studio/assets/theme.js",
        what="the class `dark` of the page's body",
        why="the page follows the system alone",
    ),
    Patch(
        name="keys of tabs",
        library="gradio",
        version=GRADIO,
        file="studio/assets/shell.js",
        what="arrow keys, addresses and panels' names for the elements of gr.Tabs",
        why="tabs ignore arrow keys, and a panel does not say whose it is",
    ),
    Patch(
        name="under messages",
        library="gradio",
        version=GRADIO,
        file="studio/assets/chat_foot.js",
        what="buttons and notes in the rows of gr.Chatbot, whose log is no live region and whose messages no label",
        why="a note inside a message is copied with it, and the log is read aloud from its start at every redraw",
    ),
    Patch(
        name="emptied numbers",
        library="gradio",
        version=GRADIO,
        file="studio/assets/chat_box.js",
        what="an emptied number of gr.Slider gets its usual value",
        why="it would become the smallest one",
    ),
    Patch(
        name="frames",
        library="gradio",
        version=GRADIO,
        file="studio/assets/frames.js",
        what="requestAnimationFrame, where the status tracker calls it",
        why="the tracker updates an event's seconds in every frame, also after its removal from the page",
    ),
    Patch(
        name="smaller pictures",
        library="gradio",
        version=GRADIO,
        file="studio/assets/pictures.js",
        what="createImageBitmap, where the picture editor decodes a file",
        why="the editor sends its whole canvas at the size of the original file",
    ),
    Patch(
        name="pictures that are forgotten",
        library="gradio",
        version=GRADIO,
        file="studio/picture_input.py",
        what="ImageEditor.accept_blobs",
        why="pictures from editors are stored without a limit, with any number of layers",
    ),
    Patch(
        name="made files",
        library="gradio",
        version=GRADIO,
        file="studio/files.py",
        what="a set in Blocks.temp_file_sets that iterates over a copy",
        why="the clean-up iterates over the sets themselves, and fails if a file is added meanwhile",
    ),
)
