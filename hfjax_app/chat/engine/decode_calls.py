"""How a decode call is made, decided from the times of earlier ones: its number of steps, and whether it drafts.

A call makes few enough steps for short waits, and many enough to spread its fixed cost over them.

Drafts are for a request that is alone. A round that verifies a draft takes as long as `cost` plain steps, and makes one
token plus the accepted part of the draft. So drafting pays where more than cost - 1 drafted tokens are accepted on
average. The cost depends on the device (nearly 1 where reading the weights dominates, 2 or more where arithmetic does)
and is measured. The acceptance depends on the text and is known without drafting: the host does the same lookup for
every token and compares the result with the tokens that follow.

Plain Python: no jax, no threads, no clock; the engine loop reports the calls.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import islice

CALL_S = 0.15  # a client sees its tokens, and a new client its first one, one or two calls later
LONGEST_CALL_S = 0.4  # where a shorter call would consist mostly of its fixed cost
FIXED_SHARE = 0.1  # share of a call's time that its fixed cost may take, if the longest call allows it
FIRST_STEPS = 4  # before anything was measured
DECAY = 0.85  # factor on the weight of earlier calls at each new one
MIN_VARIANCE = 0.05  # of the numbers of steps; below it the fixed cost can't be separated from the steps

NGRAMS = (3, 2)  # how many of the newest tokens must have occurred before: three, or else two
WEIGHT = 0.2  # of the newest draft in the running mean of accepted tokens
LOOKBACK = 8192  # tokens of a prompt that the host searches
SAMPLES = 8  # calls per median, so that one delayed call does not count
MARGIN = 0.25  # tokens above break-even at which drafting begins; it ends below break-even
REFRESH = 32  # drafting calls before a plain call is measured again
PATIENCE = 16, 1024  # first and longest number of calls before a cost that was too high is measured again; doubles
PROMISING = 1.0  # mean of accepted tokens from which that measurement is worth a call


class StepsPerCall:
    """The fixed cost of a call and the cost of a step, and how many steps a call should make.

    Both costs are fitted by weighted least squares over the latest calls. A plain mean of seconds per step does not
    work: the fixed cost makes short calls look slow, slow calls become shorter, and the result is one step per call.
    For the same reason, a fixed cost that was measured is kept while all calls have the same number of steps.

    Args:
        most: the largest number of steps.
    """

    def __init__(self, most: int):
        self._most = most
        self._sums: tuple[float, ...] = (0.0,) * 5  # of 1, steps, seconds, steps ** 2, steps * seconds
        self._fixed_s: float | None = None  # not measured yet

    def observe(self, steps: int, seconds: float) -> None:
        """Record a call of so many steps that took so long."""
        if steps < 1:
            return
        new = (1, steps, seconds, steps**2, steps * seconds)
        self._sums = tuple(DECAY * old + now for old, now in zip(self._sums, new, strict=True))
        weight, total_steps, total_s, squares, products = self._sums
        mean_steps, mean_s = total_steps / weight, total_s / weight
        variance = squares / weight - mean_steps**2
        if variance > MIN_VARIANCE:
            slope = (products / weight - mean_steps * mean_s) / variance
            if slope > 0:  # otherwise the machine has become slower or faster in between
                self._fixed_s = mean_s - mean_steps * self._bounded(slope, mean_s / mean_steps)

    @staticmethod
    def _bounded(step_s: float, mean_s: float) -> float:
        """Limit the effect of noise: neither a step nor a call may appear to cost nothing."""
        return min(max(step_s, mean_s / 4), mean_s)

    @property
    def steps(self) -> int:
        weight, steps, seconds, *_ = self._sums
        if not weight:
            return min(FIRST_STEPS, self._most)
        fixed_s = self._fixed_s or 0.0
        step_s = max(self._bounded((seconds - weight * fixed_s) / steps, seconds / steps), 1e-9)
        fit, longest = (int((limit - fixed_s) / step_s) for limit in (CALL_S, LONGEST_CALL_S))
        # Two steps at least before the fixed cost is known: calls of one step never show it.
        worth = 2 if self._fixed_s is None else math.ceil(fixed_s * (1 / FIXED_SHARE - 1) / step_s)
        return max(1, min(self._most, max(fit, min(worth, longest))))


class DraftTracker:
    """What drafts would have achieved for an answer so far, by the lookup of decode_loops.py.

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
