"""Settings from defaults, a TOML file, the environment and the command line, later ones first; and where each is from.

A field ``kafka_bootstrap`` is ``KVROUTE_KAFKA_BOOTSTRAP`` in the environment, and in the file ``bootstrap`` under
``[kafka]`` or ``kafka_bootstrap`` at the top. In the environment lists are comma separated and maps are
``name=value`` pairs, comma separated.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from services.runtime.errors import ConfigError
from services.runtime.settings import Settings

ENV_PREFIX = "KVROUTE_"
CONFIG_FILE = "KVROUTE_CONFIG"
"""Names the TOML file in the environment."""
HIDDEN = "(hidden)"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_PASSWORD = re.compile(r"(://[^:/@]*):[^@/]*@")


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Effective settings, where each value came from, and names in the environment nobody knows."""

    settings: Settings
    origins: dict[str, str]
    unknown: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, value with secrets hidden, origin: of every setting, for printing."""
        for name in Settings.model_fields:
            yield name, shown(getattr(self.settings, name)), self.origins[name]


def load_settings(
    environ: Mapping[str, str],
    toml_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Read the settings. ``overrides`` (command line options) win; those that are None don't count.

    Raises ConfigError naming the setting, where its value is from, what was found and what was expected.
    """
    if toml_path is None and environ.get(CONFIG_FILE):
        toml_path = Path(environ[CONFIG_FILE])
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    if toml_path is not None:
        for name, value in _from_toml(toml_path).items():
            values[name], origins[name] = value, str(toml_path)
    from_environ, unknown = _from_environ(environ)
    for name, value in from_environ.items():
        values[name], origins[name] = value, "environment"
    for name, value in (overrides or {}).items():
        if value is not None:
            _known(name, "the command line")
            values[name], origins[name] = value, "command line"
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, values, origins))) from None
    return LoadedSettings(settings, origins, unknown)


def env_name(field: str) -> str:
    """A setting's name in the environment."""
    return ENV_PREFIX + field.upper()


def shown(value: Any) -> str:
    """A setting's value for people: secrets hidden, of URLs only the password."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return _PASSWORD.sub(rf"\1:{HIDDEN}@", secret).partition("?")[0] if _URL.match(secret) else HIDDEN
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def is_secret(field: FieldInfo) -> bool:
    """Whether a setting's value is hidden."""
    return SecretStr in (field.annotation, *get_args(field.annotation))


def _from_environ(environ: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_FILE:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        field = Settings.model_fields.get(name)
        if field is None:
            # No error: Kubernetes puts KVROUTE_SERVICE_HOST and the like there for a service called kvroute.
            unknown.append(variable)
        elif text != "" or field.annotation is str:
            values[name] = _parse(variable, text, field)
    return values, tuple(unknown)


def _parse(variable: str, text: str, field: FieldInfo) -> Any:
    kind = get_origin(field.annotation) or field.annotation
    if kind is tuple:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    if kind is dict:
        pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
        if bad := [name for name, equals, _ in pairs if not equals]:
            raise ConfigError(f"{variable}: found {bad[0]!r} without '=': expected name=value pairs, comma separated")
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"the configuration file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is no TOML: {error}") from None
    values: dict[str, Any] = {}
    for key, value in document.items():
        field = Settings.model_fields.get(key)
        if isinstance(value, dict) and (field is None or get_origin(field.annotation) is not dict):
            for inner, item in value.items():
                values[_known(f"{key}_{inner}", f"{path} ([{key}] {inner})")] = _plain(item)
        else:
            values[_known(key, str(path))] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _known(name: str, where: str) -> str:
    if name not in Settings.model_fields:
        near = difflib.get_close_matches(name, Settings.model_fields, 1)
        hint = f": did you mean {near[0]}?" if near else ": `kvroute config` lists them all"
        raise ConfigError(f"unknown setting {name} in {where}{hint}")
    return name


def _explain(error: ValidationError, values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    for item in error.errors():
        name = str(item["loc"][0]) if item["loc"] else ""
        field = Settings.model_fields.get(name)
        if field is None:
            yield f"settings: {item['msg']}"
            continue
        found = HIDDEN if is_secret(field) else repr(values.get(name))
        meaning = f" ({field.description})" if field.description else ""
        yield (
            f"{env_name(name)} ({origins[name]}): found {found}, {_lower_first(item['msg'])}{meaning}. "
            f"Change it there; the default is {shown(field.get_default(call_default_factory=True)) or 'empty'}"
        )


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
