"""How clients connect: addresses, security, and the waits that fit the broker (Apache Kafka or the embedded one)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.runtime.errors import ConfigError
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTER_LIMIT_BYTES, RECORD_LIMIT_BYTES

REVOKE_WAIT_SECONDS = 5.0
_REQUEST_TIMEOUT_MS = 30_000
PATIENT_BYTES = 256 << 10
ENVELOPE_BYTES = 64 << 10
"""Room for headers, key and framing above a record's value."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What differs between the brokers. Numbers and reasons: docs/design.md, section 13."""

    fetch_wait_ms: int
    """Longest wait of a fetch on the request path. Tansu does not wake a waiting fetch, so it must be short there."""
    projection_wait_ms: int
    gather_ms: int
    """How long projections wait between two reads, so that records come together: a read costs more than a record."""
    patient_wait_ms: int
    """How long a reader whom nobody waits for lets the broker collect ``PATIENT_BYTES``."""
    session_ms: int
    idempotent: bool
    offsets_are_right: bool
    """Whether ListOffsets can be trusted for the end and for times. Tansu's can't after batched sends."""


KAFKA = Profile(
    fetch_wait_ms=500, projection_wait_ms=500, gather_ms=10, patient_wait_ms=200, session_ms=10_000,
    idempotent=True, offsets_are_right=True,
)  # fmt: skip
EMBEDDED = Profile(
    fetch_wait_ms=5, projection_wait_ms=50, gather_ms=0, patient_wait_ms=50, session_ms=3_000,
    idempotent=False, offsets_are_right=False,
)  # fmt: skip


def profile_of(settings: Settings) -> Profile:
    """The profile the settings name."""
    return KAFKA if settings.kafka_profile == "kafka" else EMBEDDED


def client_options(settings: Settings) -> dict[str, Any]:
    """Options every aiokafka client takes. Raises ConfigError when security settings don't fit together."""
    options: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in settings.kafka_bootstrap.split(",") if server.strip()],
        "client_id": f"kvroute-{settings.instance or 'stage'}",
        "request_timeout_ms": _REQUEST_TIMEOUT_MS,
        "security_protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol.startswith("SASL"):
        options |= _sasl(settings)
    if settings.kafka_security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    return options


def consumer_options(settings: Settings, *, projection: bool = False) -> dict[str, Any]:
    """Options of a consumer without a group."""
    profile = profile_of(settings)
    return client_options(settings) | {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": profile.projection_wait_ms if projection else profile.fetch_wait_ms,
    }


def group_options(settings: Settings, *, urgent: bool = True) -> dict[str, Any]:
    """Options of a FastStream subscriber in a group, beside connection and security."""
    profile = profile_of(settings)
    waits: dict[str, Any] = (
        {"fetch_max_wait_ms": profile.fetch_wait_ms}
        if urgent
        else {"fetch_max_wait_ms": profile.patient_wait_ms, "fetch_min_bytes": PATIENT_BYTES}
    )
    return waits | {
        "auto_offset_reset": "earliest",
        "session_timeout_ms": profile.session_ms,
        "heartbeat_interval_ms": profile.session_ms // 3,
        # A revocation waits for records in flight; the broker must not give up on the member meanwhile.
        "rebalance_timeout_ms": int(REVOKE_WAIT_SECONDS * 1000) + 10_000,
        # Not asking for records is how a stage holds back; it is no sign of death. Liveness watches progress instead.
        "max_poll_interval_ms": 24 * 3600 * 1000,
    }


def producer_options(settings: Settings) -> dict[str, Any]:
    """Options of the producer: acks from all, batches up to 1 MiB, dead letters up to 2 MiB, no linger."""
    options = client_options(settings) | {
        "acks": "all",
        "enable_idempotence": profile_of(settings).idempotent,
        "max_batch_size": RECORD_LIMIT_BYTES,
        "max_request_size": DEAD_LETTER_LIMIT_BYTES + ENVELOPE_BYTES,
        "linger_ms": 0,
    }
    if settings.kafka_compression != "none":
        options["compression_type"] = settings.kafka_compression
    return options


def admin_options(settings: Settings) -> dict[str, Any]:
    """Options of the admin client."""
    return client_options(settings)


def _sasl(settings: Settings) -> dict[str, Any]:
    if not settings.kafka_sasl_username or settings.kafka_sasl_password is None:
        raise ConfigError(
            f"KVROUTE_KAFKA_SECURITY_PROTOCOL is {settings.kafka_security_protocol} but user name or password "
            "is missing: set KVROUTE_KAFKA_SASL_USERNAME and KVROUTE_KAFKA_SASL_PASSWORD"
        )
    return {
        "sasl_mechanism": settings.kafka_sasl_mechanism or "PLAIN",
        "sasl_plain_username": settings.kafka_sasl_username,
        "sasl_plain_password": settings.kafka_sasl_password.get_secret_value(),
    }


def _ssl_context(settings: Settings) -> ssl.SSLContext:
    for name, path in (
        ("KVROUTE_KAFKA_SSL_CA", settings.kafka_ssl_ca),
        ("KVROUTE_KAFKA_SSL_CERT", settings.kafka_ssl_cert),
        ("KVROUTE_KAFKA_SSL_KEY", settings.kafka_ssl_key),
    ):
        _must_exist(name, path)
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ssl_ca)
        if settings.kafka_ssl_cert is not None:
            context.load_cert_chain(settings.kafka_ssl_cert, settings.kafka_ssl_key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"the certificates of KVROUTE_KAFKA_SSL_* could not be loaded ({error}): expected PEM files, "
            "the key unencrypted and belonging to the certificate"
        ) from None
    return context


def _must_exist(name: str, path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{name} names {path}, which is no file: give the path of a PEM file")
