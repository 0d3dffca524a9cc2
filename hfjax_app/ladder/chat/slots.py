"""Rung 5: eight users in slots, by this app's engine.

A step reads all weights, which takes the time; to make a token for eight users instead of one costs little more. The
engine's cache has a row of slots, one for each user, and `vmap` makes one program of their steps. Users come and go at
any time: which slots are active, and how far each one is, is data.
"""

import weakref
from collections.abc import Iterator
from itertools import count

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.errors import ModelUnavailable
from hfjax_app.ladder.chat.task import ChatTask, Run
from hfjax_app.ladder_result import USERS

_PIECE = 64  # the context is a multiple of this


def prepare(task: ChatTask) -> Run:
    engine = ChatEngine.from_pretrained(
        task.source,
        slots=USERS,
        context=-(-(task.length + 1) // _PIECE) * _PIECE,
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
