"""Four ways to decode the same random weights greedily: this engine, transformers, a plain port to JAX, llama.cpp.

Each contender answers several prompts at once and measures the time to the first token and in all. All use the same
weights; no answer stops at an end token.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from torchax import interop
from torchax.ops import mappings
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import StaticCache

from hfjax_app.chat import ChatEngine, SamplingParams

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "tiny": {  # for trying the benchmark itself
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}
DRAFTS = ("drafted", "accepted")
Prompts = Sequence[Sequence[int]]


def random_model(shape: str, dtype: torch.dtype, context: int) -> LlamaForCausalLM:
    """A Llama of that shape with the random weights of seed 0 and no end token.

    The weights are bfloat16 numbers, as in nearly all checkpoints, converted to `dtype`.
    """
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=context, rms_norm_eps=1e-5, **special)
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(config, dtype=torch.float32).eval().to(torch.bfloat16).to(dtype)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds until all prompts have their first token, seconds in all, and the new tokens of each prompt."""

    first_s: float
    seconds: float
    tokens: list[list[int]]


class Contender(Protocol):
    name: str
    weight_bytes: int

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        """Answer all prompts at once with `new_tokens` tokens each."""


class Engine:
    """This app's engine through its public API."""

    def __init__(self, name: str, engine: ChatEngine, weight_bytes: int):
        self.name, self.engine, self.weight_bytes = name, engine.start(), weight_bytes

    def run(self, prompts: Prompts, new_tokens: int, **sampling: float) -> Run:
        params = SamplingParams(max_tokens=new_tokens, **{"temperature": 0.0, **sampling})
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(self.engine.stream(prompt, params)) for prompt in prompts]
            tokens = [[next(stream)] for stream in streams]
            first_s = time.perf_counter() - started
            for made, stream in zip(tokens, streams, strict=True):
                made += stream
        self.drafted, self.accepted = (sum(getattr(s, f"{which}_tokens") for s in streams) for which in DRAFTS)
        return Run(first_s=first_s, seconds=time.perf_counter() - started, tokens=tokens)


class Transformers:
    """`generate`: eager, or with a static cache and its forward under torch.compile."""

    def __init__(self, name: str, model: LlamaForCausalLM, *, compiled: bool = False):
        self.name, self._model = name, model
        self.weight_bytes = sum(p.nbytes for p in model.parameters())
        self._options: dict[str, Any] = {}
        if compiled:
            compile_config = CompileConfig(fullgraph=False, mode="default")
            compile_config._compile_all_devices = True  # generate does not compile on a CPU by default
            self._options = {"cache_implementation": "static", "compile_config": compile_config}

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        """The first token's time is that of a whole answer, measured with one token: `generate` streams no batches."""
        started = time.perf_counter()
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                **self._options,
            )
        seconds = time.perf_counter() - started
        return Run(first_s=seconds, seconds=seconds, tokens=out[:, ids.shape[1] :].tolist())


class PlainPort:
    """The model through torchax as in tutorials: transformers' StaticCache, a jitted step, every token fetched.

    Make it before anything installs this app's own lowerings in torchax.
    """

    def __init__(self, name: str, model: LlamaForCausalLM, context: int):
        self.name, self._config, self._context = name, model.config, context
        self.weight_bytes = sum(p.nbytes for p in model.parameters())
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        self._weights = {key: jax.device_put(mappings.t2j(tensor.detach())) for key, tensor in named.items()}
        self._dtype = mappings.t2j_dtype(model.dtype)
        with torch.device("meta"):
            self._model = LlamaForCausalLM._from_config(
                model.config, dtype=model.dtype, attn_implementation="sdpa"
            ).eval()
        self._step = jax.jit(self._traced, donate_argnums=1)

    def _traced(self, weights: Any, cache: Any, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
        """tokens [users, n] from `position` on -> the next token of each, and the cache."""
        environment = torchax.default_env()
        with environment, torch.no_grad():
            views = interop.torch_view((weights, cache, tokens, position))
            weights, cache, tokens, position = views
            static = StaticCache(config=self._config, max_cache_len=self._context)
            for layer, (keys, values) in zip(static.layers, cache, strict=True):
                layer.keys, layer.values, layer.is_initialized = keys, values, True
                layer.device, layer.dtype, layer.cumulative_length = keys.device, keys.dtype, position + 0
            positions = (torch.arange(tokens.shape[1], device=tokens.device) + position)[None]
            out = torch.func.functional_call(
                self._model,
                weights,
                (tokens,),
                {"past_key_values": static, "use_cache": True, "position_ids": positions, "logits_to_keep": 1},
            )
            new = [(layer.keys, layer.values) for layer in static.layers]
            logits, new = interop.jax_view((out.logits[:, -1], new))
        return jnp.argmax(logits, -1).astype(jnp.int32)[:, None], new

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        config = self._config
        started = time.perf_counter()
        shape = (len(prompts), config.num_key_value_heads, self._context, config.head_dim)
        cache = [
            (jnp.zeros(shape, self._dtype), jnp.zeros(shape, self._dtype)) for _ in range(config.num_hidden_layers)
        ]
        tokens, cache = self._step(self._weights, cache, np.asarray(prompts, np.int32), np.int32(0))
        made = [np.asarray(tokens)]
        first_s = time.perf_counter() - started
        for position in range(len(prompts[0]), len(prompts[0]) + new_tokens - 1):
            tokens, cache = self._step(self._weights, cache, tokens, np.int32(position))
            made.append(np.asarray(tokens))
        seconds = time.perf_counter() - started
        return Run(first_s=first_s, seconds=seconds, tokens=np.concatenate(made, 1).tolist())


class LlamaCpp:
    """llama.cpp through llama-cpp-python's binding of its C API; all users in one batch, as its server does."""

    def __init__(self, name: str, gguf: Path, *, users: int, context: int, threads: int):
        import llama_cpp

        self.name, self.weight_bytes, self._api = name, gguf.stat().st_size, llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = users * context, 2048, 512, users
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(2048, 0, users)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """tokens: (id, position, user, whether its logits are needed)."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, (token, position, user, wanted) in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, user
        status = self._api.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _likeliest(self, at: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        started = time.perf_counter()
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        length, users = len(prompts[0]), range(len(prompts))
        self._decode(
            [
                (token, position, user, position == length - 1)
                for user, prompt in enumerate(prompts)
                for position, token in enumerate(prompt)
            ]
        )
        tokens = [self._likeliest((user + 1) * length - 1) for user in users]
        first_s, made = time.perf_counter() - started, [tokens]
        for position in range(length, length + new_tokens - 1):
            self._decode([(tokens[user], position, user, True) for user in users])
            tokens = [self._likeliest(user) for user in users]
            made.append(tokens)
        seconds = time.perf_counter() - started
        return Run(first_s=first_s, seconds=seconds, tokens=[list(of_user) for of_user in zip(*made, strict=True)])
