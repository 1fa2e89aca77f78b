"""Topic names inside and outside: stages say ``kvroute.requests.v1``, the broker may know it with a prefix."""

from __future__ import annotations


class TopicNames:
    """Adds and strips the setting ``topic_prefix``. Messages, positions and metrics carry names without it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def outside(self, name: str) -> str:
        """The broker's name of a topic, or of a consumer group."""
        return self.prefix + name

    def inside(self, name: str) -> str:
        """The stages' name of a broker's topic."""
        return name.removeprefix(self.prefix)

    def ours(self, name: str) -> bool:
        """Whether a broker's topic belongs to this prefix."""
        return name.startswith(f"{self.prefix}kvroute.")
