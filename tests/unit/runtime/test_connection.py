"""How clients connect to each broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownError
from pydantic import SecretStr

from services.runtime.connection import client_options, consumer_options, group_options, producer_options
from services.runtime.errors import ConfigError
from services.runtime.sender import not_connected
from services.runtime.settings import Settings

KAFKA = Settings(kafka_bootstrap="a:1, b:2")
TANSU = Settings(kafka_profile="embedded")


def test_kafka_wakes_a_waiting_fetch_and_knows_idempotent_producers() -> None:
    assert client_options(KAFKA)["bootstrap_servers"] == ["a:1", "b:2"]
    assert group_options(KAFKA)["fetch_max_wait_ms"] == 500
    assert group_options(KAFKA)["session_timeout_ms"] == 10_000
    assert producer_options(KAFKA)["enable_idempotence"] is True


def test_the_embedded_broker_is_asked_often_and_without_idempotence() -> None:
    assert group_options(TANSU)["fetch_max_wait_ms"] == 5
    assert group_options(TANSU)["session_timeout_ms"] == 3_000
    assert consumer_options(TANSU)["fetch_max_wait_ms"] == 5
    assert consumer_options(TANSU, projection=True)["fetch_max_wait_ms"] == 50
    assert producer_options(TANSU)["enable_idempotence"] is False


def test_batches_up_to_a_mebibyte_dead_letters_up_to_two_no_linger_all_acks() -> None:
    options = producer_options(KAFKA)
    assert options["max_batch_size"] == 1 << 20
    assert options["max_request_size"] > 2 << 20
    assert options["linger_ms"] == 0
    assert options["acks"] == "all"
    assert "compression_type" not in options
    assert producer_options(Settings(kafka_compression="lz4"))["compression_type"] == "lz4"


def test_the_broker_waits_longer_for_a_member_than_a_revocation_takes() -> None:
    assert group_options(TANSU)["rebalance_timeout_ms"] > 5_000


def test_sasl() -> None:
    options = client_options(
        Settings(
            kafka_security_protocol="SASL_PLAINTEXT",
            kafka_sasl_mechanism="SCRAM-SHA-512",
            kafka_sasl_username="u",
            kafka_sasl_password=SecretStr("p"),
        )
    )
    assert options["security_protocol"] == "SASL_PLAINTEXT"
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")


def test_sasl_without_a_user_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="set KVROUTE_KAFKA_SASL_USERNAME and KVROUTE_KAFKA_SASL_PASSWORD"):
        client_options(Settings(kafka_security_protocol="SASL_SSL"))


def test_tls_names_the_setting_whose_file_is_missing_or_wrong(tmp_path: Path) -> None:
    assert client_options(Settings(kafka_security_protocol="SSL"))["ssl_context"] is not None
    with pytest.raises(ConfigError, match=r"KVROUTE_KAFKA_SSL_CA names .*nowhere\.pem, which is no file"):
        client_options(Settings(kafka_security_protocol="SSL", kafka_ssl_ca=tmp_path / "nowhere.pem"))
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigError, match="expected PEM files"):
        client_options(Settings(kafka_security_protocol="SSL", kafka_ssl_cert=wrong))


def test_a_broker_without_idempotent_producers_is_told_from_one_that_is_away() -> None:
    kafka, embedded = Settings(), Settings(kafka_profile="embedded")
    assert "KVROUTE_KAFKA_PROFILE=embedded" in str(not_connected(kafka, UnknownError()))
    assert "no broker answers at 127.0.0.1:9092" in str(not_connected(kafka, KafkaConnectionError()))
    assert "no broker answers" in str(not_connected(embedded, UnknownError()))
