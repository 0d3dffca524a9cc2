"""Whether drafting pays for a request that is alone, decided from measurements.

A round that verifies a draft takes as long as `cost` plain steps, and makes one token plus the accepted part of the
draft. So drafting pays where more than cost - 1 drafted tokens are accepted on average. The cost depends on the device
(nearly 1 where reading the weights dominates, 2 or more where arithmetic does) and is measured. The acceptance depends
on the text and is known without drafting: the host does the same lookup for every token and compares the result with
the tokens that follow. Plain Python: no jax, no threads, no clock.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import islice

NGRAMS = (3, 2)  # how many of the newest tokens must have occurred before: three, or else two
WEIGHT = 0.2  # of the newest draft in the running mean of accepted tokens
LOOKBACK = 8192  # tokens of a prompt that the host searches
SAMPLES = 8  # calls per median, so that one delayed call does not count
MARGIN = 0.25  # tokens above break-even at which drafting begins; it ends below break-even
REFRESH = 32  # drafting calls before a plain call is measured again
PATIENCE = 16, 1024  # first and longest number of calls before a cost that was too high is measured again; doubles
PROMISING = 1.0  # mean of accepted tokens from which that measurement is worth a call


class DraftTracker:
    """What drafts would have achieved for an answer so far, by the lookup of speculative_loop.py.

    Args:
        prompt: token ids.
        draft: tokens that a round drafts.

    Attributes:
        drafts: how many drafts have ended.
        accepted: running mean of the accepted tokens per draft; starts at 0.
    """

    def __init__(self, prompt: Sequence[int], draft: int):
        self._tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in NGRAMS}
        self._draft_tokens = draft
        self._draft: list[int] = []
        self._matched = 0  # tokens of the current draft that equal the answer's
        self._read = 0
        self.drafts = 0
        self.accepted = 0.0
        for token in prompt[-LOOKBACK:]:
            self._draft = self._add(token)

    def extend(self, answer: Sequence[int]) -> None:
        """Compare the answer's new tokens with the drafts; `answer` is the whole answer so far."""
        for token in islice(answer, self._read, None):
            expected = self._draft[self._matched] if self._matched < len(self._draft) else None
            follows = self._add(token)
            if token == expected:
                self._matched += 1
                continue
            if self._draft:
                self.drafts += 1
                self.accepted += WEIGHT * (self._matched - self.accepted)
            self._draft, self._matched = follows, 0
        self._read = len(answer)

    def _add(self, token: int) -> list[int]:
        """Append a token; returns the draft of what may follow it."""
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
        return [tokens[found + 1 + i % period] for i in range(self._draft_tokens)]


class DraftPolicy:
    """Decides call by call whether to draft. Keeps the times of plain steps and drafting rounds per length bucket."""

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._verify: dict[int, deque[float]] = {}
        self._on = False
        self._calls = 0  # since drafting began or ended
        self._patience = PATIENCE[0]

    def cost(self, length: int) -> float | None:
        """Time of a drafting round in plain steps, at least 1; None: not measured."""
        plain, verify = self._plain.get(length), self._verify.get(length)
        if not plain or not verify:
            return None
        return max(1.0, statistics.median_low(verify) / max(statistics.median_low(plain), 1e-9))

    def should_draft(self, tracker: DraftTracker, length: int) -> bool:
        """Whether the next call of a request drafts.

        Args:
            tracker: of this request.
            length: the length bucket of the call.
        """
        self._calls += 1
        if not self._plain.get(length):
            return False
        on = self._pays(tracker.accepted, length)
        if on == self._on:
            return self._draft_or_measure(tracker.accepted)
        self._on, self._calls = on, 0
        return on

    def observe(self, length: int, *, steps: int, drafted: int, seconds: float) -> None:
        """Record the time of a call for one request.

        Args:
            length: its length bucket.
            steps: plain steps or rounds.
            drafted: how many of them had a draft.
            seconds: of the whole call.
        """
        if steps < 1:
            return
        if not drafted:
            self._plain.setdefault(length, deque(maxlen=SAMPLES)).append(seconds / steps)
        elif plain := self._plain.get(length):
            rest = seconds - (steps - drafted) * statistics.median_low(plain)
            self._verify.setdefault(length, deque(maxlen=SAMPLES)).append(max(rest, 0.0) / drafted)

    def _pays(self, accepted: float, length: int) -> bool:
        cost = self.cost(length)
        break_even = 0.0 if cost is None else cost - 1
        return accepted > break_even + (0 if self._on else MARGIN)

    def _draft_or_measure(self, accepted: float) -> bool:
        """The decision while nothing changes: from time to time the opposite one, to measure its time again."""
        if self._on:
            if self._calls < REFRESH:
                return True
            self._calls = 0
            return False
        if accepted < PROMISING or self._calls < self._patience:
            return False
        self._calls, self._patience = 0, min(2 * self._patience, PATIENCE[1])
        return True
