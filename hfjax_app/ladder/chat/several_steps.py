"""Rung 4: several steps a call.

The host is slow to start a program and to read one number back. `jax.lax.scan` puts a loop around the step, inside of
the program: a call makes 16 tokens, and the host looks at them once. The price is latency, and that a text may end in
the middle of a call.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torchax

from hfjax_app.ladder.chat.one_step import Step
from hfjax_app.ladder.chat.task import ChatTask, Run

STEPS = 16


def prepare(task: ChatTask) -> Run:
    weights, step = torchax.extract_jax(Step(task.load(), task.length + STEPS))

    def steps(weights: Any, ids: jax.Array, held: Any) -> tuple[jax.Array, Any, jax.Array]:
        """The last token, the cache, and all tokens, [STEPS]."""

        def body(carried: Any, _: None) -> tuple[Any, jax.Array]:
            ids, held = step(weights, carried)
            return (ids, held), ids[0, 0]

        (ids, held), made = jax.lax.scan(body, (ids, held), length=STEPS)
        return ids, held, made

    first = jax.jit(lambda weights, ids: step(weights, (ids,)))
    following = jax.jit(steps, donate_argnums=2)

    def run() -> Iterator[int]:
        ids, held = first(weights, jnp.array([task.prompt]))
        yield int(ids[0, 0])
        left = task.tokens - 1
        while left > 0:
            ids, held, made = following(weights, ids, held)
            yield from made[:left].tolist()
            left -= STEPS

    return run
