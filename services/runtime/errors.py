"""The error tree. Who is at fault decides what happens: input errors never stop a stage, our own may."""

from __future__ import annotations


class KvrouteError(Exception):
    """Base of all errors kvroute raises on purpose."""


class ConfigError(KvrouteError):
    """A setting is missing or wrong. The message names the setting, what was found, expected and how to mend it."""


class BadRecord(KvrouteError):
    """A record that will never be handled: it goes to the dead letters at once. ``code`` is a metric label."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Transient(KvrouteError):
    """Something that may heal (broker, database, worker away): the record is tried again, a bounded number of times."""


class Refused(KvrouteError):
    """A request that ends here with an answer to its sender (OpenAI error body), not a dead letter."""

    def __init__(
        self, status: int, message: str, *, type: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
