"""Tokens a second over the last minutes. Plain Python: no threads, no clock."""

PERIOD_S = 5
PERIODS = 60  # five minutes


class Throughput:
    """Adds up tokens second by second; costs nothing while there are none."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}  # by whole seconds

    def add(self, tokens: int, now: float) -> None:
        """So many tokens at the time `now`, in seconds."""
        second = int(now)
        self._tokens[second] = self._tokens.get(second, 0) + tokens
        if len(self._tokens) > 2 * PERIODS * PERIOD_S:
            first = second - PERIODS * PERIOD_S
            self._tokens = {at: count for at, count in self._tokens.items() if at >= first}

    def rates(self, now: float) -> tuple[float, ...]:
        """Tokens a second in each of the last PERIODS periods of PERIOD_S seconds; the last one ends just now."""
        end = int(now)  # the present second is not over, so it does not count
        return tuple(
            sum(self._tokens.get(end - PERIOD_S * ago - i, 0) for i in range(1, PERIOD_S + 1)) / PERIOD_S
            for ago in range(PERIODS - 1, -1, -1)
        )
