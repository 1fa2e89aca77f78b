"""The FastStream broker of a stage: group consumers only; sending and topics are ours (sender.py, admin.py)."""

from __future__ import annotations

import logging
from typing import Any

from faststream.kafka import KafkaBroker
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from services.runtime.connection import client_options
from services.runtime.settings import Settings

_logger = logging.getLogger("kvroute.faststream")
_logger.addFilter(lambda record: "Auto create topics is disabled" not in record.getMessage())
_GRACE_SECONDS = 5.0


def make_broker(settings: Settings) -> KafkaBroker:
    """A broker object that is not connected yet. Raises ConfigError for security settings that don't fit."""
    options = client_options(settings)
    return KafkaBroker(
        options["bootstrap_servers"],
        client_id=options["client_id"],
        request_timeout_ms=options["request_timeout_ms"],
        security=_security(options),
        # The producer FastStream would make turns header values into text and drops what is not UTF-8.
        consumer_only=True,
        allow_auto_create_topics=False,
        graceful_timeout=_GRACE_SECONDS,
        apply_types=False,
        logger=_logger,
        log_level=logging.DEBUG,
    )


def _security(options: dict[str, Any]) -> BaseSecurity | None:
    context = options.get("ssl_context")
    if "sasl_mechanism" not in options:
        return BaseSecurity(ssl_context=context) if context is not None else None
    kinds = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}
    return kinds[options["sasl_mechanism"]](
        username=options["sasl_plain_username"],
        password=options["sasl_plain_password"],
        ssl_context=context,
        use_ssl=context is not None,
    )
