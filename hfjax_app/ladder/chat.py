"""The rungs of a text, from the bottom, and below them those of a forward of its prompt.

A rung is a function of the task. It does what is done once, and returns a function that makes the text and yields its
tokens as they are made. All are greedy and go on after an end token, so that all make the same tokens.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torchax
from transformers import AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel, StaticLayer

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.tokenizer import load_tokenizer
from hfjax_app.chat.torch_reference import compare, reference
from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.ladder_result import USERS
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.dtype_policy import default_dtype
from hfjax_app.runtime.mesh import TensorParallel, mesh_of, replicated

QUESTION = "Tell me a short story about a fox."
STEPS = 16  # tokens of a call that makes several
_MOST_PROMPT = 512
_CONTEXT_STEP = 64  # the engine's context is a multiple of this

TextRun = Callable[[], Iterator[int]]


@dataclass(frozen=True, kw_only=True)
class ChatTask:
    """Make `tokens` tokens after `prompt`, greedily, with the model of `source`.

    Args:
        source: a folder or a hub id.
        prompt: token ids.
        tokens: how many to make.
        dtype: of the weights.
    """

    source: str
    prompt: tuple[int, ...]
    tokens: int
    dtype: torch.dtype

    @classmethod
    def of(cls, source: str, tokens: int) -> "ChatTask":
        """The task of a chat model: the answer to QUESTION.

        Raises:
            ModelUnavailable: there is no such model, or no tokenizer.
        """
        tokenizer = load_tokenizer(source, _MOST_PROMPT)
        prompt = tuple(ChatFormat(tokenizer).encode([{"role": "user", "content": QUESTION}]))
        return cls(source=source, prompt=prompt, tokens=tokens, dtype=default_dtype())

    @property
    def length(self) -> int:
        """Positions of a cache that holds all of it."""
        return len(self.prompt) + self.tokens

    def agrees(self, answer: Sequence[int]) -> bool:
        """Whether PyTorch in float32 on the CPU would have chosen these tokens, or others by no more than rounding."""
        model = reference(self.source, "none")
        return compare(model, [self.prompt], [answer], dtype=self.dtype).holds

    def load(self) -> PreTrainedModel:
        """transformers' own model with its weights, on the CPU.

        Raises:
            ModelUnavailable: it can't be loaded.
        """
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                fetch(self.source), dtype=self.dtype, use_safetensors=True, trust_remote_code=False
            )
        except ModelUnavailable:
            raise
        except Exception as error:
            raise ModelUnavailable(f"model {os.fspath(self.source)!r} can't be loaded: {first_line(error)}") from error
        loaded: PreTrainedModel = model.eval()
        return loaded


def eager_dynamic(task: ChatTask) -> TextRun:
    """Rung 1: eager, with a dynamic cache.

    `model.to("jax")` turns each weight into a tensor that holds a JAX array. Inside of torchax's environment JAX
    computes each torch operator, one after the other, and the model's code does not notice. The cache grows by one
    position with each token, and XLA compiles for shapes: every step compiles operators for a length that was never
    seen before.
    """
    return _eager(task, lambda model: DynamicCache(config=model.config))


def eager_static(task: ChatTask) -> TextRun:
    """Rung 2: eager, with a static cache.

    The cache has its full length from the start, and a mask hides the positions that are not written yet. Every step
    has the same shapes, so the third step compiles nothing that the second one has not. The operators are still
    dispatched one by one.
    """
    return _eager(task, lambda model: Cache(layers=static_layers(model, task.length)))


def _eager(task: ChatTask, empty_cache: Callable[[Any], Cache]) -> TextRun:
    model: Any = task.load()
    with torchax.default_env():
        model.to("jax")

    def step(ids: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, int]:
        """The likeliest next token after tokens [1, n]: [1, 1], and as a number."""
        with torchax.default_env(), torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            likeliest = logits.argmax(-1)
            return likeliest, int(likeliest.item())

    def run() -> Iterator[int]:
        cache = empty_cache(model)
        with torchax.default_env():
            ids = torch.tensor([task.prompt]).to("jax")
        for _ in range(task.tokens):
            ids, token = step(ids, cache)
            yield token

    return run


def static_layers(model: Any, length: int) -> list[Any]:
    """A layer of a static cache for each layer of the model.

    transformers' StaticCache counts the tokens of a sliding window in Python numbers, which would be constants of the
    next rung's program; so all layers are plain StaticLayers.
    """
    config = model.config.get_text_config(decoder=True)
    return [StaticLayer(length) for _ in range(config.num_hidden_layers)]


class CachedForward(torch.nn.Module):
    """A model's step as a function of its cache: (keys, values, tokens so far) of each layer."""

    def __init__(self, model: PreTrainedModel, length: int):
        super().__init__()
        self.model = model
        self.length = length

    def forward(self, ids: torch.Tensor, state: list[Any] | None = None) -> tuple[torch.Tensor, list[Any]]:
        """The likeliest next token, [1, 1], and the new cache; the first step makes the cache."""
        layers: list[Any] = static_layers(self.model, self.length)
        for layer, (keys, values, tokens) in zip(layers, state or (), strict=state is not None):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values, layer.cumulative_length = keys, values, tokens
        cache = Cache(layers=layers)
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=False)[0]
        return logits.argmax(-1), [(layer.keys, layer.values, layer.cumulative_length) for layer in layers]


def one_step(task: ChatTask) -> TextRun:
    """Rung 3: one compiled step.

    `extract_jax` makes a pure function of a module: weights and arguments in, results out. So the cache must be an
    argument and a result too: `CachedForward` takes the keys and values of each layer apart and puts them together
    again. `jax.jit` compiles the step once for the prompt's shape and once for a single token's. The weights are an
    argument: as constants of the program they would be compiled with it, all 13 GB of them in the posts.
    `donate_argnums` lets a step write into the old cache instead of a copy.
    """
    weights, step = torchax.extract_jax(CachedForward(task.load(), task.length))
    first = jax.jit(lambda weights, ids: step(weights, (ids,)))
    following = jax.jit(lambda weights, ids, state: step(weights, (ids, state)), donate_argnums=2)

    def run() -> Iterator[int]:
        ids, state = first(weights, jnp.array([task.prompt]))
        yield int(ids[0, 0])
        for _ in range(task.tokens - 1):
            ids, state = following(weights, ids, state)
            yield int(ids[0, 0])

    return run


def several_steps(task: ChatTask) -> TextRun:
    """Rung 4: several steps a call.

    The host is slow to start a program and to read one number back. `jax.lax.scan` puts a loop around the step, inside
    of the program: a call makes 16 tokens, and the host looks at them once. The price is latency, and that a text may
    end in the middle of a call.
    """
    weights, step = torchax.extract_jax(CachedForward(task.load(), task.length + STEPS))

    def steps(weights: Any, ids: jax.Array, state: Any) -> tuple[jax.Array, Any, jax.Array]:
        """The last token, the cache, and all tokens, [STEPS]."""

        def body(carry: Any, _: None) -> tuple[Any, jax.Array]:
            ids, state = step(weights, carry)
            return (ids, state), ids[0, 0]

        (ids, state), tokens = jax.lax.scan(body, (ids, state), length=STEPS)
        return ids, state, tokens

    first = jax.jit(lambda weights, ids: step(weights, (ids,)))
    following = jax.jit(steps, donate_argnums=2)

    def run() -> Iterator[int]:
        ids, state = first(weights, jnp.array([task.prompt]))
        yield int(ids[0, 0])
        left = task.tokens - 1
        while left > 0:
            ids, state, tokens = following(weights, ids, state)
            yield from tokens[:left].tolist()
            left -= STEPS

    return run


def slots(task: ChatTask) -> TextRun:
    """Rung 5: eight users in slots, by this app's engine.

    A step reads all weights, which takes the time; to make a token for eight users instead of one costs little more.
    The engine's cache has a row of slots, one for each user, and `vmap` makes one program of their steps. Users come
    and go at any time: which slots are active, and how far each one is, is data.
    """
    engine = ChatEngine.from_pretrained(
        task.source,
        slots=USERS,
        context=-(-(task.length + 1) // _CONTEXT_STEP) * _CONTEXT_STEP,
        buckets=(),  # only the programs for all slots
        end_tokens=(),
        speculation="never",
    )
    engine.start()
    params = SamplingParams(temperature=0.0, max_tokens=task.tokens)
    names = count()  # users do not share what was computed for another

    def run() -> Iterator[int]:
        """The first user's tokens, which must be all the others' too."""
        streams = [engine.stream(task.prompt, params, client=str(next(names))) for _ in range(USERS)]
        first: list[int] = []
        for token in streams[0]:
            first.append(token)
            yield token
        if any(list(stream) != first for stream in streams[1:]):
            raise ModelUnavailable("eight users with the same question have got different tokens")

    weakref.finalize(run, engine.stop)  # its thread holds the weights
    return run


def one_device(task: ChatTask) -> TextRun:
    """A forward of the prompt on one device, as one program: what several devices are compared with."""
    weights, forward = torchax.extract_jax(task.load())
    compiled = jax.jit(lambda weights, ids: forward(weights, (ids,), {"use_cache": False, "return_dict": False})[0])

    def run() -> Iterator[int]:
        for _ in range(task.tokens):
            logits = compiled(weights, jnp.array([task.prompt]))
            yield int(logits[0, -1].argmax())

    return run


def several_devices(task: ChatTask) -> TextRun:
    """The same forward on all devices of this machine: tensor parallelism.

    The program does not change, only where its arrays are. Of two consecutive projections the first is split by its
    outputs and the second by its inputs, so each device computes a part of every layer and one sum over the devices
    ends it. XLA sees the shardings of the weights and puts the sums where they are needed. Which weight is split how is
    transformers' own plan for the architecture (`runtime/mesh.py`).
    """
    mesh = mesh_of(jax.local_devices())
    model = task.load()
    sharding = TensorParallel(mesh, model)
    whole, forward = torchax.extract_jax(model)
    weights = {name: jax.device_put(array, sharding(name, array.shape)) for name, array in whole.items()}
    compiled = jax.jit(
        lambda weights, ids: forward(weights, (ids,), {"use_cache": False, "return_dict": False})[0],
        out_shardings=replicated(mesh),
    )

    def run() -> Iterator[int]:
        for _ in range(task.tokens):
            logits = compiled(weights, jax.device_put(jnp.array([task.prompt]), replicated(mesh)))
            yield int(logits[0, -1].argmax())

    return run
