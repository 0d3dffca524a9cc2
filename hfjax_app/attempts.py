"""How often someone may try a wrong secret: LOGIN_FAILURES times in LOGIN_FAILURES_S. Counts are kept in memory."""

import time
from collections import OrderedDict
from collections.abc import Callable

from hfjax_app.errors import Overloaded
from hfjax_app.limits import LOGIN_FAILURES, LOGIN_FAILURES_S, LOGINS


class Attempts:
    """Counts the failures of each address or client.

    Args:
        what: is tried, for the message: "passwords".
    """

    def __init__(self, what: str):
        self._what = what
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def begin(self, who: str) -> Callable[[], None]:
        """Count an attempt, as a failure until it is none: others may be tried meanwhile.

        Returns:
            What is to be called when the secret was right.

        Raises:
            Overloaded: too many were wrong.
        """
        recent = self._recent(who)
        if len(recent) >= LOGIN_FAILURES:
            raise Overloaded(f"{LOGIN_FAILURES} wrong {self._what}: wait a minute", LOGIN_FAILURES_S)
        at = time.monotonic()
        recent.append(at)

        def forgive() -> None:
            if at in (kept := self._recent(who)):  # else it has expired meanwhile
                kept.remove(at)

        return forgive

    def _recent(self, who: str) -> list[float]:
        """The times of the failures in the last minute."""
        since = time.monotonic() - LOGIN_FAILURES_S
        while len(self._failures) > LOGINS:
            self._failures.popitem(last=False)
        recent = self._failures[who] = [at for at in self._failures.get(who, ()) if at > since]
        return recent
