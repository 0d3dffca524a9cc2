"""The errors that reach a user. Each message is one line, names the value and the limit, and says what to do."""


class HfjaxError(Exception):
    """Base of every error that this app raises on purpose."""


class RequestRejected(HfjaxError):
    """The user's fault: the request was refused before anything was computed."""


class ModelUnavailable(HfjaxError):
    """A model can't be loaded or can't run: which one, why, and what would help."""


class EngineStopped(HfjaxError):
    """The engine is not running (any more); the cause, where there is one, is chained."""
