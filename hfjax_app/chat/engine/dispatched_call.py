"""A device call that was dispatched, and what it has made when it is read. Does not dispatch: `engine_loop.py` does."""

from dataclasses import dataclass

import jax

from hfjax_app.chat.engine.scheduler import DecodeStep, Request
from hfjax_app.chat.model.decode_state import NOTHING, DecodeOutput, DraftCounts
from hfjax_app.chat.sampling.logprobs import TokenLogprobs, token_logprobs

# A request, its new token ids, and their log-probabilities if it asked for them.
Answer = tuple[Request, tuple[int, ...], tuple[TokenLogprobs, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchedCall:
    """A call whose tokens have not been read yet.

    Args:
        output: on the device.
        columns: of each request in the output.
        step: the decode step; None: a prefill.
        dispatched_at: seconds, by time.perf_counter.
    """

    output: DecodeOutput
    columns: dict[Request, int]
    step: DecodeStep | None
    dispatched_at: float

    def read(self) -> tuple[list[Answer], DraftCounts | None]:
        """Wait for the output: each request's new tokens, and the counts of a call that drafts."""
        wanted = any(request.handle.top_logprobs is not None for request in self.columns)
        output = self.output
        tokens, logprobs, drafts = jax.device_get((output.tokens, output.logprobs if wanted else None, output.drafts))
        answers = []
        for request, column in self.columns.items():
            made = tokens[:, column] != NOTHING
            ids, top = tuple(tokens[made, column].tolist()), request.handle.top_logprobs
            chosen = jax.tree.map(lambda leaf, at=(made, column): leaf[at], logprobs)
            answers.append((request, ids, () if top is None else token_logprobs(chosen, top)))
        return answers, None if drafts is None else DraftCounts(*map(int, drafts))
