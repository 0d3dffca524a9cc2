"""A forward of the prompt on one device, as one program: what several devices are compared with."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import torchax

from hfjax_app.ladder.chat.task import ChatTask, Run


def prepare(task: ChatTask) -> Run:
    weights, forward = torchax.extract_jax(task.load())
    compiled = jax.jit(lambda weights, ids: forward(weights, (ids,), {"use_cache": False, "return_dict": False})[0])

    def run() -> Iterator[int]:
        for _ in range(task.tokens):
            logits = compiled(weights, jnp.array([task.prompt]))
            yield int(logits[0, -1].argmax())

    return run
