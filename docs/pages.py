"""The generated pages as text. Each takes one catalogue of the code and gives one Markdown page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sqlalchemy import Column
from sqlalchemy.dialects import postgresql

from schemas.asyncapi import messages as message_types
from services.audit.tables import metadata
from services.audit.views import VIEWS
from services.kv.reason import MEANING, Reason
from services.runtime import metrics as metrics_module
from services.runtime import settings as settings_module
from services.runtime.settings import Settings
from services.runtime.topics import PATTERNS, TOPICS, Topic

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def configuration() -> str:
    """Settings by section: variable, type, default, meaning."""
    lines = _head("Configuration", "services/runtime/settings.py")
    lines += [
        "Every setting is an environment variable `KVROUTE_<NAME>`, or a line of the TOML file that `--config` or",
        "`KVROUTE_CONFIG` names; the environment wins. In TOML, `kafka_bootstrap` may also stand as `bootstrap` under",
        "`[kafka]`. `kvroute config` prints the values in force and where each came from, secrets hidden. Lists are",
        "comma separated in the environment, maps are comma separated `name=value` pairs.",
    ]
    sections = _sections(settings_module, r"^    # (.+)$", r"^    (\w+): ")
    for section in dict.fromkeys(sections.values()):
        names = [name for name in Settings.model_fields if sections.get(name) == section]
        rows = [_setting(name, Settings.model_fields[name]) for name in names]
        lines += ["", f"## {section}", "", *_table(("Variable", "Type", "Default", "Meaning"), rows)]
    return _page(lines)


def topics() -> str:
    """The topic table, and the ACLs that follow from it."""
    lines = _head("Topics", "services/runtime/topics.py")
    lines += [
        "`kvroute topics create` makes them; automatic creation should be off on the broker. *group* readers share the",
        "work, *projection* readers each read every partition. Message types are described in [messages](messages.md).",
        "",
    ]
    rows = [_topic(topic) for topic in TOPICS + PATTERNS]
    lines += _table(("Topic", "Holds", "Key", "Partitions", "Cleanup", "Message", "Written by", "Read by"), rows)
    return _page(lines)


def messages() -> str:
    """Every message type field by field."""
    lines = _head("Messages", "schemas/")
    lines += [
        "Record values are JSON. Readers ignore fields they do not know; fields that are null are left out. Lists of",
        "64-bit hashes are base64 of little-endian u64, single ones 16 hexadecimal digits. Times are wall",
        "milliseconds. For machines: [JSON Schema files](../schemas/json), [AsyncAPI 3](../schemas/asyncapi.json).",
    ]
    parts: dict[str, type[BaseModel]] = {}
    topic_of = {topic.message: topic for topic in TOPICS + PATTERNS}
    for message in message_types():
        lines += ["", f"## {message.SCHEMA}", "", f"Topic `{topic_of[message].name}`. {_doc(message)}", ""]
        lines += _fields(message, parts)
    lines += ["", "## Parts"]
    done: set[str] = set()
    while pending := [name for name in parts if name not in done]:
        for name in pending:
            done.add(name)
            lines += ["", f"### {name}", "", _doc(parts[name]), "", *_fields(parts[name], parts)]
    return _page(lines)


def metrics() -> str:
    """Metrics by section: name, kind, labels, meaning."""
    lines = _head("Metrics", "services/runtime/metrics.py")
    lines += [
        "Prometheus metrics under `/metrics` of the gateway and of every stage's health server",
        "(`KVROUTE_HEALTH_PORT`). A process shows the metrics of all stages that run in it.",
    ]
    sections = _sections(metrics_module, r"^# (.+)$", r'"(kvroute_\w+)"')
    for section in dict.fromkeys(sections.get(info.name, "Other") for info in metrics_module.CATALOGUE):
        rows = [
            (f"`{info.name}`", info.kind, ", ".join(info.labels), info.meaning)
            for info in metrics_module.CATALOGUE
            if sections.get(info.name, "Other") == section
        ]
        lines += ["", f"## {section}", "", *_table(("Metric", "Kind", "Labels", "Meaning"), rows)]
    return _page(lines)


def reasons() -> str:
    """Why a prompt's view is not exact, and what to do about it."""
    lines = _head("Reasons", "services/kv/reason.py")
    lines += [
        "A prompt is *exact* as far as kvroute can prove that it sees the very tokens the worker's model sees. Where",
        "that ends, the first cause in prompt order is recorded: in the decision, in `v_fallbacks`, in a metric. What",
        "stands before it still counts for routing, and the request goes on.",
        "",
    ]
    rows = [(f"`{reason}`", MEANING[reason].what, MEANING[reason].mend) for reason in Reason]
    lines += _table(("Reason", "What it says", "What to do"), rows)
    return _page(lines)


def audit_tables() -> str:
    """Tables and views of the audit store, column by column."""
    lines = _head("Audit tables and views", "services/audit/tables.py and views.py")
    lines += [
        "The same on SQLite and PostgreSQL. [Audit](audit.md) shows how to use them.",
        "",
        "## Views",
        "",
        *_table(("View", "Answers", "Try"), [(f"`{v.name}`", v.answers, f"`{v.example}`") for v in VIEWS]),
        "",
        "## Tables",
    ]
    for table in metadata.sorted_tables:
        rows = [
            (f"`{column.name}`", _sql_type(column), "key" if column.primary_key else "", column.comment or "")
            for column in table.columns
        ]
        lines += ["", f"### {table.name}", "", f"{table.comment}.", ""]
        lines += _table(("Column", "Type", "", "Meaning"), rows)
    return _page(lines)


def _sql_type(column: Column[Any]) -> str:
    implementation = getattr(column.type, "impl_instance", column.type)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return str(implementation.compile(dialect=dialect)).lower()


def _setting(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    return f"`KVROUTE_{name.upper()}`", _type_name(field.annotation), _default(field), field.description or ""


def _topic(topic: Topic) -> tuple[str, ...]:
    message = f"[{topic.message.SCHEMA}](messages.md#{_anchor(topic.message.SCHEMA)})" if topic.message else "raw"
    name = topic.name.replace("{}", "<worker>" if "work" in topic.name else "<instance>")
    cleanup = topic.config["cleanup.policy"]
    if "retention.ms" in topic.config:
        cleanup += f" {_duration(int(topic.config['retention.ms']))}"
    if "segment.ms" in topic.config:
        cleanup += f", segments {_duration(int(topic.config['segment.ms']))}"
    return (
        f"`{name}`", topic.purpose, topic.key, str(topic.partitions), cleanup, message, topic.written_by, topic.read_by,
    )  # fmt: skip


def _fields(model: type[BaseModel], parts: dict[str, type[BaseModel]]) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        for part in _models(field.annotation):
            parts.setdefault(part.__name__, part)
        needed = "yes" if field.is_required() else ""
        rows.append((f"`{name}`", _type_name(field.annotation, field.metadata), needed, _meaning(field)))
    return _table(("Field", "Type", "Required", "Meaning"), rows)


def _meaning(field: FieldInfo) -> str:
    text = field.description or ""
    default = "" if field.is_required() else _default(field)
    if default in {"", "false", "0", "0.0", "empty", "none", "see the part"}:
        return text
    return f"{text + '; ' if text else ''}default {default}"


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _type_name(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    kind = get_origin(annotation)
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    if "PlainSerializer" in {type(item).__name__ for item in metadata}:
        return "u64 list" if kind is list else "u64"
    if kind is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if kind in {Union, UnionType}:
        return " or ".join(_type_name(argument) for argument in arguments)
    if kind is not None and hasattr(annotation, "__metadata__"):
        return _type_name(arguments[0], annotation.__metadata__)
    if kind in {list, tuple}:
        return f"list of {_type_name(arguments[0])}"
    if kind is dict:
        return f"map of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    name = getattr(annotation, "__name__", str(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{name}](#{_anchor(name)})"
    if annotation is Reason:
        return "[Reason](reasons.md)"
    if hasattr(annotation, "__members__"):
        return ", ".join(f"`{member.value}`" for member in annotation)
    plain = {"str": "text", "int": "integer", "float": "number", "bool": "true/false", "Path": "path", "Any": "JSON"}
    return plain.get(name, "secret" if annotation is SecretStr else "JSON" if name == "object" else name)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return ""
    if isinstance(value, SecretStr):
        return f"`{value.get_secret_value()}`"
    if isinstance(value, BaseModel):
        return "see the part"
    if isinstance(value, bool):
        return str(value).lower()
    if value in (None, (), {}, [], ""):
        return "empty" if value is not None else "none"
    return str(value) if isinstance(value, (int, float)) else f"`{value}`"


def _sections(module: ModuleType, comment: str, name: str) -> dict[str, str]:
    """Which ``# Section`` comment stands above each name in a module's source."""
    section = ""
    found: dict[str, str] = {}
    for line in inspect.getsource(module).splitlines():
        if match := re.search(comment, line):
            section = match[1]
        elif section and (match := re.search(name, line)):
            found.setdefault(match[1], section)
    return found


def _doc(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").replace("``", "`")
    return re.sub(r"\s*\n\s*", " ", text)


def _duration(milliseconds: int) -> str:
    for size, unit in _UNITS:
        if milliseconds % size == 0 and (milliseconds // size < 48 or unit == "d"):
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading.lower())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = [[_escape(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [list(columns), ["---"] * len(columns), *escaped]]


def _escape(cell: str) -> str:
    cell = cell.replace("|", "\\|")
    return cell if "`" in cell else cell.replace("<", "&lt;")


def _head(title: str, source: str) -> list[str]:
    return [f"# {title}", "", f"<!-- Generated from {source} by `make docs`. Do not edit. -->", ""]


def _page(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
