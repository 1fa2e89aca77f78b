"""What families are built from: the configs of a model folder and its tokenizer, which have to agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.layout.folder import ModelFolder

TokenId = Callable[[str], int | None]
"""Id of a special token in the model's tokenizer."""


class UnusableFamily(Exception):
    """The model is of a known family, but its folder contradicts itself or lacks a parameter: no media are exact."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder's configs and the ids of its tokenizer's tokens."""

    folder: ModelFolder
    token_id: TokenId

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        return self.folder.config

    @property
    def vision(self) -> Mapping[str, Any]:
        """The vision section of config.json."""
        return section(self.folder.config, "vision_config")

    def token_text(self, field: str, usual: str) -> str:
        """How processor_config.json spells a special token; ``usual`` where it does not say."""
        value = self.folder.processor.get(field)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) and value else usual

    def special(self, token: str) -> int:
        """Id of a token. Raises UnusableFamily when the tokenizer does not know it."""
        found = self.token_id(token)
        if found is None:
            raise UnusableFamily(f"the tokenizer has no token {token}")
        return found

    def agreed(self, field: str, token: str) -> int:
        """Id of a token that config.json states too. Raises UnusableFamily unless both are the same."""
        declared, actual = self.config.get(field), self.token_id(token)
        if actual is None or declared != actual:
            raise UnusableFamily(
                f"config.json says {field} is {declared}, the tokenizer says {token} is {actual}: expected them equal"
            )
        return actual


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a config; empty where there is none."""
    value = config.get(name)
    return value if isinstance(value, dict) else {}


MOST = 1 << 31
"""No pixels, patches or tokens of a config are more."""


def count(config: Mapping[str, Any], name: str, file: str, *, most: int = MOST) -> int:
    """A positive whole number of a config, up to ``most``. Raises UnusableFamily for anything else."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise UnusableFamily(f"{file} has no usable {name}: found {value!r}")
    return value


def same(name: str, *stated: tuple[str, Any]) -> None:
    """Raises UnusableFamily if two files state different values. None stands for a file that does not state it."""
    found = [(file, value) for file, value in stated if value is not None]
    for file, value in found[1:]:
        if value != found[0][1]:
            raise UnusableFamily(
                f"{found[0][0]} says {name} is {found[0][1]}, {file} says {value}: expected them equal"
            )
