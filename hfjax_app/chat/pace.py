"""How many steps a decode call takes: few enough that nobody waits long for it to end, many enough to be worth it."""

CALL_S = 0.1  # readers see their tokens, and newcomers their first one, a call or two later
FIRST_STEPS = 4  # before anything was measured
WEIGHT = 0.25  # of the newest measurement in the running mean


class Pace:
    """The time a step takes, as a running mean, and the number of steps that fit CALL_S.

    Args:
        most: the largest number of steps.
    """

    def __init__(self, most: int):
        self._most = most
        self._step_s: float | None = None

    def observe(self, steps: int, seconds: float) -> None:
        """A call of this many steps took so long."""
        if steps < 1:
            return
        step_s = seconds / steps
        self._step_s = step_s if self._step_s is None else (1 - WEIGHT) * self._step_s + WEIGHT * step_s

    @property
    def steps(self) -> int:
        if self._step_s is None:
            return min(FIRST_STEPS, self._most)
        return max(1, min(self._most, int(CALL_S / max(self._step_s, 1e-9))))
