"""A medium that can't be proven: the request goes on, by text prefix, and says why."""

from __future__ import annotations

from services.kv.reason import Reason
from services.runtime.errors import KvrouteError


class Unusable(KvrouteError):
    """Why one item has no exact identity or size. The message has no URL query and no payload."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Unusable], tuple[Reason, str]]:
        return Unusable, (self.reason, str(self))  # decode processes send it back

    def again(self) -> Unusable:
        """The same, without the trace of where it came from: for keeping and raising later."""
        return Unusable(self.reason, str(self))
