"""Field types shared by the messages: 64-bit values, lists of them, identifiers and the message base."""

from __future__ import annotations

import base64
import binascii
from array import array
from typing import Annotated, Any, ClassVar, Self

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@+-]{1,128}$")]
"""A request id or session id: printable, no separators, so that ``tenant/request_id`` is unambiguous."""

TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,64}$")]
WorkerId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")]
ResponsesTopic = Annotated[str, StringConstraints(pattern=r"^kvroute\.responses\.[A-Za-z0-9._-]{1,180}$")]


def _parse_hex64(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) != 16:
            raise ValueError(f"expected 16 hexadecimal digits, found {len(value)} characters")
        return int(value, 16)
    return value


Hex64 = Annotated[
    int,
    BeforeValidator(_parse_hex64),
    Field(ge=0, lt=1 << 64),
    PlainSerializer(lambda value: f"{value:016x}", return_type=str, when_used="always"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{16}$"}),
]
"""A 64-bit number, 16 hexadecimal digits on the wire (JSON numbers lose bits above 2**53 in many languages)."""


Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number as JSON and SQL can write it again. Read from text it could have thousands of digits."""


def pack_u64(values: list[int]) -> str:
    """Base64 of the values as little-endian u64."""
    return base64.b64encode(array("Q", values).tobytes()).decode()


def _parse_u64_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        raw = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64 of little-endian u64 values: {error}") from None
    if len(raw) % 8:
        raise ValueError(f"expected base64 of whole u64 values, found {len(raw)} bytes")
    numbers = array("Q")
    numbers.frombytes(raw)
    return numbers.tolist()


U64List = Annotated[
    list[int],
    BeforeValidator(_parse_u64_list),
    PlainSerializer(pack_u64, return_type=str, when_used="always"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "little-endian u64 values"}),
]
"""A list of 64-bit hashes, base64 of little-endian u64 on the wire."""


class Part(BaseModel):
    """A piece of a message: immutable, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_enum_values=False, ser_json_inf_nan="null")


class Message(Part):
    """A record's value. ``SCHEMA`` names type and version and travels in the ``schema`` header."""

    SCHEMA: ClassVar[str]

    def to_bytes(self) -> bytes:
        """The JSON bytes of the record's value, without fields that are None."""
        return orjson.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decode a record's value. Raises ValueError (orjson or pydantic) saying what was found and expected."""
        return cls.model_validate(orjson.loads(raw))


def request_key(tenant: str, request_id: str) -> str:
    """The Kafka key and the identity of a request: the same id of two tenants is two requests."""
    return f"{tenant}/{request_id}"
