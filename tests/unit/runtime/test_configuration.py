"""Settings: where a value comes from, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from services.runtime.configuration import HIDDEN, env_name, is_secret, load_settings, shown
from services.runtime.errors import ConfigError
from services.runtime.settings import Settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvroute.toml"


class TestPrecedence:
    def test_defaults(self) -> None:
        loaded = load_settings({})
        assert loaded.settings == Settings()
        assert set(loaded.origins.values()) == {"default"}

    def test_environment_over_file_and_command_line_over_both(self, file: Path) -> None:
        file.write_text('concurrency = 1\nretries = 1\npolicy = "kv"\n[kafka]\nbootstrap = "file:1"\n')
        loaded = load_settings(
            {"KVROUTE_CONCURRENCY": "2", "KVROUTE_RETRIES": "2", "HOME": "/x"}, file, {"retries": 3, "policy": None}
        )
        found = loaded.settings
        assert (found.kafka_bootstrap, found.concurrency, found.retries, found.policy) == ("file:1", 2, 3, "kv")
        assert loaded.origins["kafka_bootstrap"] == str(file)
        assert loaded.origins["concurrency"] == "environment"
        assert loaded.origins["retries"] == "command line"
        assert loaded.origins["policy"] == str(file)
        assert loaded.origins["data_dir"] == "default"

    def test_the_environment_can_name_the_file(self, file: Path) -> None:
        file.write_text("kafka_partitions = 3\n")
        assert load_settings({"KVROUTE_CONFIG": str(file)}).settings.kafka_partitions == 3


class TestForms:
    def test_lists_and_maps_in_the_environment(self) -> None:
        found = load_settings(
            {
                "KVROUTE_BLOCK_SIZES": "16, 32",
                "KVROUTE_MODELS": "a=/m/a, b=/m/b=c",
                "KVROUTE_MEDIA_ALLOW_HOSTS": "x.org,y.org",
                "KVROUTE_MEDIA_DENY_HOSTS": "",
            }
        ).settings
        assert found.block_sizes == (16, 32)
        assert found.models == {"a": "/m/a", "b": "/m/b=c"}
        assert found.media_allow_hosts == ("x.org", "y.org")
        assert found.media_deny_hosts == ()

    def test_lists_and_maps_in_the_file(self, file: Path) -> None:
        file.write_text('block_sizes = [16]\n[models]\na = "/m/a"\n[media]\nallow_hosts = ["x.org"]\n')
        found = load_settings({}, file).settings
        assert (found.block_sizes, found.models, found.media_allow_hosts) == ((16,), {"a": "/m/a"}, ("x.org",))

    def test_an_empty_variable_is_no_value(self) -> None:
        loaded = load_settings({"KVROUTE_WORKER_ID": "", "KVROUTE_KAFKA_PARTITIONS": ""})
        assert loaded.settings.worker_id is None
        assert loaded.origins["worker_id"] == "default"


class TestMistakes:
    @pytest.mark.parametrize(
        ("environ", "message"),
        [
            (
                {"KVROUTE_CONCURRENCY": "many"},
                r"KVROUTE_CONCURRENCY \(environment\): found 'many', input should be a valid integer.*"
                r"records a stage handles at once.*the default is 64",
            ),
            ({"KVROUTE_KAFKA_PROFILE": "redpanda"}, "'kafka' or 'embedded'"),
            ({"KVROUTE_MODELS": "qwen"}, "found 'qwen' without '=': expected name=value pairs"),
            ({"KVROUTE_WORKER_ID": "W 1"}, "KVROUTE_WORKER_ID"),
        ],
    )
    def test_a_wrong_value_names_setting_place_and_mend(self, environ: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_settings(environ)

    def test_every_wrong_value_is_told_at_once(self) -> None:
        with pytest.raises(ConfigError) as caught:
            load_settings({"KVROUTE_CONCURRENCY": "x", "KVROUTE_RETRIES": "y"})
        assert len(str(caught.value).splitlines()) == 2

    def test_a_typo_in_the_file(self, file: Path) -> None:
        file.write_text('[kafka]\nbootstraps = "x"\n')
        with pytest.raises(ConfigError, match=r"unknown setting kafka_bootstraps.*did you mean kafka_bootstrap\?"):
            load_settings({}, file)

    def test_no_file_and_no_toml(self, file: Path) -> None:
        with pytest.raises(ConfigError, match="can't be read: No such file"):
            load_settings({}, file)
        file.write_text("= 1")
        with pytest.raises(ConfigError, match="is no TOML"):
            load_settings({}, file)

    def test_an_unknown_option(self) -> None:
        with pytest.raises(ConfigError, match="unknown setting concurency in the command line"):
            load_settings({}, None, {"concurency": 1})

    def test_names_in_the_environment_that_nobody_knows_are_only_told(self) -> None:
        assert load_settings({"KVROUTE_SERVICE_HOST": "10.0.0.1"}).unknown == ("KVROUTE_SERVICE_HOST",)


class TestSecrets:
    def test_they_are_hidden_in_printouts_and_errors(self) -> None:
        loaded = load_settings(
            {
                "KVROUTE_GATEWAY_API_KEYS": "topsecret=tenant",
                "KVROUTE_DATABASE_URL": "postgresql+asyncpg://user:topsecret@db/kvroute?password=topsecret",
                "KVROUTE_KAFKA_SASL_PASSWORD": "topsecret",
            }
        )
        rows = {name: (value, origin) for name, value, origin in loaded.rows()}
        assert "topsecret" not in str(rows)
        assert rows["database_url"] == (f"postgresql+asyncpg://user:{HIDDEN}@db/kvroute", "environment")
        assert rows["gateway_api_keys"] == (HIDDEN, "environment")

    def test_which_settings_are_secret(self) -> None:
        secret = {name for name, field in Settings.model_fields.items() if is_secret(field)}
        assert secret >= {"database_url", "gateway_api_keys", "identity_key", "kafka_sasl_password"}
        assert "kafka_bootstrap" not in secret


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), ((1, 2), "1,2"), ({"a": "b"}, "a=b"), (1.5, "1.5"), (SecretStr("x"), HIDDEN)],
)
def test_values_for_people(value: object, text: str) -> None:
    assert shown(value) == text


def test_every_setting_can_be_set_from_the_environment() -> None:
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        text = default.get_secret_value() if isinstance(default, SecretStr) else shown(default)
        if text:
            assert getattr(load_settings({env_name(name): text}).settings, name) == default
