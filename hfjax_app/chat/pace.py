"""How many steps a decode call takes: few enough that nobody waits long for it to end, many enough to be worth it."""

CALL_S = 0.15  # readers see their tokens, and newcomers their first one, a call or two later
FIRST_STEPS = 4  # before anything was measured
KEPT = 0.85  # of what the earlier calls weigh, at each new one
ALIKE = 0.05  # variance of the numbers of steps below which a call's own cost can't be told from its steps'


class Pace:
    """A call's own cost and a step's, by weighted least squares over the latest calls, and the steps that fit CALL_S.

    One mean of seconds per step would not do: a call's own cost makes short calls look slow, slow calls become shorter,
    and it ends at one step a call.

    Args:
        most: the largest number of steps.
    """

    def __init__(self, most: int):
        self._most = most
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of 1, steps, seconds, steps ** 2, steps * seconds

    def observe(self, steps: int, seconds: float) -> None:
        """A call of this many steps took so long."""
        if steps > 0:
            new = (1, steps, seconds, steps**2, steps * seconds)
            self._sums = tuple(KEPT * old + now for old, now in zip(self._sums, new, strict=True))

    @property
    def steps(self) -> int:
        weight, steps, seconds, squares, products = self._sums
        if not weight:
            return min(FIRST_STEPS, self._most)
        mean_steps, mean_s = steps / weight, seconds / weight
        variance, step_s, call_s = squares / weight - mean_steps**2, mean_s / mean_steps, 0.0
        if variance > ALIKE:
            slope = (products / weight - mean_steps * mean_s) / variance
            step_s = min(max(slope, step_s / 4), step_s)  # noise must not make steps look free
            call_s = mean_s - step_s * mean_steps
        return max(1, min(self._most, int((CALL_S - call_s) / max(step_s, 1e-9))))
