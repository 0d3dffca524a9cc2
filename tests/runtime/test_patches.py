"""Each change of a library from outside is for the installed version, and is still needed."""

import asyncio
import importlib.metadata
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gradio as gr
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from fastapi import FastAPI
from gradio import processing_utils, route_utils, state_holder
from gradio.brotli_middleware import BrotliMiddleware
from gradio.context import LocalContext
from gradio.queueing import Queue
from gradio.routes import templates
from jax._src.lru_cache import LRUCache
from torch.nn import functional
from torchax import interop
from torchax.tensor import Environment, OperatorNotFound
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import local_torch_dtype
from transformers.models.gemma3 import modeling_gemma3

import hfjax_app
from hfjax_app.runtime import compile_cache
from hfjax_app.runtime.patches import PATCHES, Patch
from hfjax_app.studio.page import QUEUE_POLL_S

ROOT = Path(hfjax_app.__file__).parent
Check = Callable[[pytest.MonkeyPatch, Path], Any]
CHECKS: dict[str, Check] = {}

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name.replace(" ", "-"))


@each_patch
def test_its_version_is_the_one_that_is_installed(patch: Patch) -> None:
    """A new version may not need the change, or need it elsewhere: review the patch, then update its version."""
    assert importlib.metadata.version(patch.library) == patch.version
    assert f"{patch.library}=={patch.version}\n" in (ROOT.parent / "requirements.txt").read_text()
    assert (ROOT / patch.file).is_file()


@each_patch
def test_it_is_still_needed(patch: Patch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    CHECKS[patch.name](monkeypatch, tmp_path)


def test_every_patch_has_a_name_and_a_check_of_its_own() -> None:
    assert sorted(CHECKS) == sorted(patch.name for patch in PATCHES)


def check(name: str) -> Callable[[Check], Check]:
    """The check of the patch of this name: it fails if the library no longer needs the patch."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


# transformers and jax


@check("sets in order")
def _sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "for layer_type in set(self.config.layer_types)" in inspect.getsource(modeling_gemma3)
    script = (
        "from hfjax_app.runtime.set_order import OrderedSet\n"
        "kinds = ['full_attention', 'sliding_attention', 'linear_attention']\n"
        "print(*set(kinds)), print(*OrderedSet(kinds))"
    )
    plain, ordered = set(), set()
    for seed in "1234":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT.parent)}
        output = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
        first, second = output.splitlines()
        plain.add(first), ordered.add(second)
    assert len(plain) > 1
    assert len(ordered) == 1


@check("buffers computed again")
def _marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    rotary = model.model.rotary_emb
    rotary.inv_freq.zero_()
    model.initialize_weights()
    assert not rotary.inv_freq.any(), "it was marked, and left out"
    rotary._is_hf_initialized = False
    model.initialize_weights()
    assert rotary.inv_freq.any()


@check("one model at a time")
def _dtype(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "local_torch_dtype" in inspect.getsource(LlamaForCausalLM._from_config)
    seen: list[torch.dtype] = []
    with local_torch_dtype(torch.bfloat16):
        thread = threading.Thread(target=lambda: seen.append(torch.get_default_dtype()))
        thread.start()
        thread.join()
    assert seen == [torch.bfloat16]


@check("sealed cache entries")
def _entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = LRUCache(str(tmp_path), max_size=-1)
    key = f"jit_f-{'0' * 64}"
    cache.put(key, b"damaged")
    cache.put(key, b"new")
    assert cache.get(key) == b"damaged"
    assert [path.name for path in tmp_path.glob(compile_cache._ENTRY)] == [f"{key}-cache"]


# torchax


def upstream(monkeypatch: pytest.MonkeyPatch, function: Callable[..., torch.Tensor]) -> Callable[..., jax.Array]:
    """A function of tensors as a function of arrays, by unpatched torchax."""
    monkeypatch.setattr(torchax, "_env", Environment())

    def run(*arrays: jax.Array) -> jax.Array:
        with torchax.default_env(), torch.no_grad():
            return interop.jax_view(function(*interop.torch_view(arrays)))

    return run


@check("upsampling")
def _upsampling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda image: functional.interpolate(image, scale_factor=2.0, mode="nearest"))
    with pytest.warns(UserWarning, match="int64"):
        jax.make_jaxpr(run)(jnp.ones((1, 1, 2, 2)))


@check("grouped transposed convolution")
def _convolution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    image, kernel = (torch.randn(shape, generator=generator) for shape in ((1, 4, 3, 3), (4, 4, 3, 3)))
    run = upstream(monkeypatch, lambda *tensors: functional.conv_transpose2d(*tensors, groups=2))
    want = functional.conv_transpose2d(image, kernel, groups=2).numpy()
    assert not np.allclose(run(jnp.asarray(image.numpy()), jnp.asarray(kernel.numpy())), want, atol=1e-2)


@check("gelu")
def _gelu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "erfc" in str(jax.make_jaxpr(upstream(monkeypatch, functional.gelu))(jnp.ones(3)))


def half_precision_off_by(
    monkeypatch: pytest.MonkeyPatch, norm: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> float:
    """The largest difference from torch; numbers up to 4 in bfloat16 are 0.016 apart."""
    x = (50 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        got = upstream(monkeypatch, norm)(jnp.asarray(x.float().numpy(), "bfloat16"))
    return np.abs(np.asarray(got, np.float32) - norm(x).float().numpy()).max()


@check("group norm")
def _group_norm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert half_precision_off_by(monkeypatch, lambda x: functional.group_norm(x, 4), (2, 8, 5, 3)) > 0.05


@check("layer norm")
def _layer_norm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert half_precision_off_by(monkeypatch, lambda x: functional.layer_norm(x, (16,)), (2, 5, 16)) > 0.05


@check("attention")
def _attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda x, mask: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    assert jnp.isnan(run(jnp.ones((1, 1, 2, 4)), jnp.asarray([[True, False], [False, False]]))).any()


@check("grouped products")
def _grouped_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, lambda rows, matrices, ends: functional.grouped_mm(rows, matrices, offs=ends))
    with pytest.raises(OperatorNotFound, match="_grouped_mm"):
        run(jnp.ones((4, 6)), jnp.ones((2, 6, 5)), jnp.asarray([2, 4], jnp.int32))


@check("linear")
def _linear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = upstream(monkeypatch, functional.linear)
    called: list[bool] = []
    torchax.default_env().override_op_definition(functional.linear, lambda x, weight: called.append(True) or x)
    run(jnp.ones((2, 2)), jnp.ones((2, 2)))
    assert called


@check("type_as")
def _type_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "self._elem = self._elem.astype(other._elem.dtype)" in inspect.getsource(torchax.tensor)


# gradio


def as_it_is(module: ModuleType) -> ModuleType:
    """A new import of a module, without the changes of this process."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_as_it_is", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


async def page_of(*names: str) -> gr.Blocks:
    """A page with endpoints, each a separate kind. Asynchronous, because outside a loop Gradio leaves a loop open."""

    async def answer() -> str:
        return ""

    with gr.Blocks() as page:
        for name in names:
            gr.api(answer, api_name=name, concurrency_id=name)
    return page


@check("no downloads")
def _downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    async def download(url: str, cache_dir: str) -> str:
        asked.append(url)
        return str(tmp_path / "file")

    async def take() -> None:
        with gr.Blocks():
            await gr.File().async_move_resource_to_block_cache("http://example.invalid/large")

    monkeypatch.setattr(processing_utils, "async_ssrf_protected_download", download)
    asyncio.run(take())
    assert asked == ["http://example.invalid/large"]


@check("nothing kept for links")
def _links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def kept() -> list[dict[str, Any]]:
        with gr.Blocks() as page:
            text = gr.Textbox("")
        state = as_it_is(state_holder).SessionState(page)
        state._update_value_in_config(text._id, "what was sent")
        return [*state.components]

    assert "what was sent" in str(asyncio.run(kept()))
    assert "state._update_value_in_config(" in inspect.getsource(gr.Blocks)


@check("only uploaded files")
def _uploads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def mounted() -> gr.Blocks:
        page = await page_of("any")
        gr.mount_gradio_app(FastAPI(), page, path="/", ssr_mode=False)
        return page

    page = asyncio.run(mounted())
    token = LocalContext.blocks.set(page)
    try:
        processing_utils._check_allowed("/etc/passwd", True)  # it is no upload, and is allowed
        page.has_launched = True
        with pytest.raises(processing_utils.InvalidPathError):
            processing_utils._check_allowed("/etc/passwd", True)
    finally:
        LocalContext.blocks.reset(token)


@check("a waiting line for each kind")
def _lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def push() -> tuple[bool, Any, str]:
        page = await page_of("full", "other")
        page.queue(max_size=1)
        full, other = page.fns.values()
        page._queue.create_event_queue_for_fn(full)
        page._queue.event_queue_per_concurrency_id["full"].queue.append(SimpleNamespace())
        return await Queue.push(page._queue, SimpleNamespace(fn_index=other._id), None, None)

    _, _, status = asyncio.run(push())
    assert status == "queue_full"


@check("a queue that rests")
def _rests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def pause() -> float:
        page = await page_of("any")
        return page.queue()._queue.sleep_when_free

    assert asyncio.run(pause()) < QUEUE_POLL_S
    assert "asyncio.sleep(self.sleep_when_free)" in inspect.getsource(Queue)


@check("limits of a mounted page")
def _limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {"max_threads", "state_session_capacity"}
    assert not names & {*inspect.signature(gr.mount_gradio_app).parameters}
    assert names <= {*inspect.signature(gr.Blocks.launch).parameters}
    page = asyncio.run(page_of("any"))
    assert names <= {*vars(page)}


@check("scripts first")
def _scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, _, _ = templates.env.loader.get_source(templates.env, "frontend/index.html")
    assert source.count("<head>") == 1
    assert 0 < source.index('<script type="module"') < source.index("</head>")


def asset(*words: str, pattern: str) -> bool:
    """Whether one of the page's files contains all of these words."""
    folder = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
    return any(all(word in path.read_text() for word in words) for path in folder.glob(pattern))


@check("a compressed page")
def _compressed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gradios = BrotliMiddleware(lambda *_: None)
    assert [gradios._is_compressible_file_type({"path": path}) for path in ("/", "/a.js")] == [False, True]


@check("closed tabs")
def _closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def shown() -> Any:
        with gr.Blocks() as page, gr.Tabs():
            gr.Tab("open")
            with gr.Tab("closed"):
                gr.HTML("any")
        [html] = [each for each in page.config["components"] if each["type"] == "html"]
        return html["props"].get("visible", True)

    assert asyncio.run(shown()) is True


@check("a chosen theme")
def _theme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("prefers-color-scheme", "__theme", pattern="*.js")


@check("keys of tabs")
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset('role="tablist"', pattern="*.js")
    assert not asset('role="tablist"', "ArrowRight", pattern="*.js")


@check("under messages")
def _messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset('role="log"', 'aria-live="polite"', "message-row", pattern="*.js")


@check("emptied numbers")
def _numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("range_id_", "Math.min(Math.max(", pattern="Index-*.js")


@check("frames")
def _frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("requestAnimationFrame", pattern="statustracker-*.js")


@check("smaller pictures")
def _smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("createImageBitmap", "accept_blobs", pattern="Index-*.js")


@check("pictures that are forgotten")
def _forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def sent() -> int:
        with gr.Blocks():
            editor = gr.ImageEditor()
        for number in range(300):
            data = {"id": str(number), "type": "background", "index": None}
            editor.accept_blobs(SimpleNamespace(data=data, files=[("file", b"a picture")]))
        return len(editor.blob_storage)

    assert asyncio.run(sent()) == 300


@check("made files")
def _made_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files: set[str] = set()
    for name in "ab":
        (tmp_path / name).touch()
        files.add(str(tmp_path / name))
    remove = os.remove
    monkeypatch.setattr(os, "remove", lambda path: (remove(path), files.add(f"{path}-made")))
    with pytest.raises(RuntimeError, match="changed size"):
        route_utils.delete_files_created_by_app(SimpleNamespace(blocks={}, temp_file_sets=[files]), None)
