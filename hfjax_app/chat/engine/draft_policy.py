"""Whether drafting tokens pays for a lone request, from what was measured. Plain Python: no jax, no threads, no clock.

A round that verifies a draft takes as long as `cost` plain steps, and makes one token and those of the draft that were
right. So drafts pay where more than cost - 1 of their tokens are right in the mean. The cost is the device's (nearly 1
where reading the weights takes the time, 2 or more where arithmetic does) and is measured. How many would be right is
the text's, and is known before anything is paid for: whatever way tokens were made, the same lookup is done on the host
and compared with the tokens that came.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import islice

NGRAMS = (3, 2)  # newest tokens that must have been there before: three, or else two
WEIGHT = 0.2  # of the newest draft in the running mean of what is right
REMEMBERED = 8192  # tokens of a prompt that the host looks through
MEASURED = 8  # calls whose median counts, so that one that was held up does not
MARGIN = 0.25  # tokens over break-even to begin; drafting ends below it
REFRESH = 32  # calls that draft, before a plain one is measured again
PATIENCE = 16, 1024  # calls until a cost that was too high is measured again; each time twice as many
PROMISING = 1.0  # tokens right in the mean, from which that is worth a call


class DraftTracker:
    """What drafts would have done for an answer so far, by looking them up as speculative_loop.py does.

    Args:
        prompt: token ids.
        draft: tokens that a round drafts.
    """

    def __init__(self, prompt: Sequence[int], draft: int):
        self._tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in NGRAMS}
        self._most = draft
        self._draft: list[int] = []
        self._right = 0
        self._read = 0
        self.drafts = 0  # that have ended
        self.accepted = 0.0  # running mean of the tokens that are right in a draft; at first a pessimist's
        for token in prompt[-REMEMBERED:]:
            self._draft = self._add(token)

    def extend(self, answer: Sequence[int]) -> None:
        """The answer's tokens so far; those that are new are looked at."""
        for token in islice(answer, self._read, None):
            expected = self._draft[self._right] if self._right < len(self._draft) else None
            follows = self._add(token)
            if token == expected:
                self._right += 1
                continue
            if self._draft:
                self.drafts += 1
                self.accepted += WEIGHT * (self._right - self.accepted)
            self._draft, self._right = follows, 0
        self._read = len(answer)

    def _add(self, token: int) -> list[int]:
        """One more token; returns the draft of what may follow it."""
        tokens = self._tokens
        tokens.append(token)
        newest, found = len(tokens) - 1, None
        for n, ends in self._ends.items():
            if len(tokens) >= n:
                gram = tuple(tokens[-n:])
                found = ends.get(gram) if found is None else found
                ends[gram] = newest
        if found is None:
            return []
        period = newest - found
        return [tokens[found + 1 + i % period] for i in range(self._most)]


class DraftPolicy:
    """Decides call by call. Knows the times of plain steps and of rounds with a draft, for each bucket of rows."""

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._verify: dict[int, deque[float]] = {}
        self._on = False
        self._calls = 0  # since drafting began or ended
        self._patience = PATIENCE[0]

    def cost(self, rows: int) -> float | None:
        """Plain steps that a round with a draft takes, at least 1; None: not measured."""
        plain, verify = self._plain.get(rows), self._verify.get(rows)
        if not plain or not verify:
            return None
        return max(1.0, statistics.median_low(verify) / max(statistics.median_low(plain), 1e-9))

    def wants(self, recall: DraftTracker, rows: int) -> bool:
        """Whether the next call of a request is to draft.

        Args:
            recall: of this request.
            rows: the bucket of the call.
        """
        self._calls += 1
        if not self._plain.get(rows):
            return False
        on = self._pays(recall.accepted, rows)
        if on == self._on:
            return self._again(recall.accepted, rows)
        self._on, self._calls = on, 0
        return on

    def observe(self, rows: int, *, steps: int, drafted: int, seconds: float) -> None:
        """A call for one request took so long.

        Args:
            rows: its bucket.
            steps: plain steps or rounds.
            drafted: how many of them had a draft.
            seconds: in all.
        """
        if steps < 1:
            return
        if not drafted:
            self._plain.setdefault(rows, deque(maxlen=MEASURED)).append(seconds / steps)
        elif plain := self._plain.get(rows):
            rest = seconds - (steps - drafted) * statistics.median_low(plain)
            self._verify.setdefault(rows, deque(maxlen=MEASURED)).append(max(rest, 0.0) / drafted)

    def _pays(self, accepted: float, rows: int) -> bool:
        cost = self.cost(rows)
        needed = 0.0 if cost is None else cost - 1
        return accepted > needed + (0 if self._on else MARGIN)

    def _again(self, accepted: float, rows: int) -> bool:
        """What to do while nothing changes: now and then the other thing, so that its time stays true."""
        if self._on:
            if self._calls < REFRESH:
                return True
            self._calls = 0
            return False
        if accepted < PROMISING or self._calls < self._patience:
            return False
        self._calls, self._patience = 0, min(2 * self._patience, PATIENCE[1])
        return True
