"""How many steps a decode call takes: few enough that nobody waits long for it to end, many enough to be worth it."""

import math

CALL_S = 0.15  # readers see their tokens, and newcomers their first one, a call or two later
LONGEST_CALL_S = 0.4  # where a shorter one would be mostly its own cost
OWN_SHARE = 0.1  # of a call's time that may be its own cost, if the longest call allows it
FIRST_STEPS = 4  # before anything was measured
KEPT = 0.85  # of what the earlier calls weigh, at each new one
ALIKE = 0.05  # variance of the numbers of steps below which a call's own cost can't be told from its steps'


class StepsPerCall:
    """A call's own cost and a step's, by weighted least squares over the latest calls, and the steps worth a call.

    One mean of seconds per step would not do: a call's own cost makes short calls look slow, slow calls become shorter,
    and it ends at one step a call. For the same reason, an own cost that was told once is kept while calls are alike.

    Args:
        most: the largest number of steps.
    """

    def __init__(self, most: int):
        self._most = most
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of 1, steps, seconds, steps ** 2, steps * seconds
        self._call_s: float | None = None  # not told yet

    def observe(self, steps: int, seconds: float) -> None:
        """A call of this many steps took so long."""
        if steps < 1:
            return
        new = (1, steps, seconds, steps**2, steps * seconds)
        self._sums = tuple(KEPT * old + now for old, now in zip(self._sums, new, strict=True))
        weight, total_steps, total_s, squares, products = self._sums
        mean_steps, mean_s = total_steps / weight, total_s / weight
        variance = squares / weight - mean_steps**2
        if variance > ALIKE:
            slope = (products / weight - mean_steps * mean_s) / variance
            if slope > 0:  # otherwise the machine has become slower or faster in between
                self._call_s = mean_s - mean_steps * self._bounded(slope, mean_s / mean_steps)

    @staticmethod
    def _bounded(step_s: float, mean_s: float) -> float:
        """Noise must not make steps look free, nor a call."""
        return min(max(step_s, mean_s / 4), mean_s)

    @property
    def steps(self) -> int:
        weight, steps, seconds, *_ = self._sums
        if not weight:
            return min(FIRST_STEPS, self._most)
        call_s = self._call_s or 0.0
        step_s = max(self._bounded((seconds - weight * call_s) / steps, seconds / steps), 1e-9)
        fit, longest = (int((limit - call_s) / step_s) for limit in (CALL_S, LONGEST_CALL_S))
        # Calls of one step would never tell what is the call's own.
        worth = 2 if self._call_s is None else math.ceil(call_s * (1 / OWN_SHARE - 1) / step_s)
        return max(1, min(self._most, max(fit, min(worth, longest))))
