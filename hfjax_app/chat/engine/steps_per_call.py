"""How many steps a decode call makes: few enough for short waits, many enough to spread the fixed cost of a call.

Does not measure time: the engine loop reports the calls.
"""

import math

CALL_S = 0.15  # a client sees its tokens, and a new client its first one, one or two calls later
LONGEST_CALL_S = 0.4  # where a shorter call would consist mostly of its fixed cost
FIXED_SHARE = 0.1  # share of a call's time that its fixed cost may take, if the longest call allows it
FIRST_STEPS = 4  # before anything was measured
DECAY = 0.85  # factor on the weight of earlier calls at each new one
MIN_VARIANCE = 0.05  # of the numbers of steps; below it the fixed cost can't be separated from the steps


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
