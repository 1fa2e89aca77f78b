"""The command line as a whole: help, exit codes, errors in one line, settings from file and environment."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest

from services.cli import exits
from services.cli.groups import ELSEWHERE
from services.cli.main import COMMANDS, cli
from services.runtime.errors import ConfigError, KvrouteError, Transient


def all_commands():
    """Every command and subcommand by its words."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        yield (name,), command
        if isinstance(command, click.Group):
            for sub in command.commands.values():
                yield (name, sub.name), sub


@pytest.mark.parametrize("words", [words for words, _ in all_commands()], ids=" ".join)
def test_every_help_has_examples_that_begin_with_the_command(kvroute, words):
    ran = kvroute(*words, "--help")
    assert ran.code == exits.DONE
    assert "Examples:" in ran.out
    assert f"kvroute {' '.join(words)}" in ran.out


def test_every_leaf_takes_a_config_file_and_json():
    for words, command in all_commands():
        if not isinstance(command, click.Group):
            assert {"config", "json"} <= {parameter.name for parameter in command.params}, words


FOLDERS = ("--model", "--model-dir")


def example_lines():
    for words, command in all_commands():
        for line in re.findall(r"^  (.*kvroute .*)$", command.epilog or "", re.MULTILINE):
            yield " ".join(words), line


@pytest.mark.parametrize("line", [line for _, line in example_lines()])
def test_every_example_is_a_command_line_that_parses(line, tmp_path):
    """What --help shows can be copied: all its commands, options and arguments exist."""
    words = [word for word in shlex.split(line) if not word.startswith("KVROUTE_")][1:]
    words = [str(tmp_path) if before in FOLDERS else word for before, word in zip(["", *words], words, strict=False)]
    command = cli
    while isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    command.make_context("kvroute", words)


def test_help_lists_all_commands_and_exit_codes_without_importing_them(kvroute):
    ran = kvroute("--help")
    assert all(name in ran.out for name in COMMANDS)
    assert all(meaning in ran.out for meaning in exits.MEANINGS.values())
    code = (
        "import sys; from services.cli.main import run; run(['--help']); "
        "heavy = {'sqlalchemy', 'aiokafka', 'rich', 'pydantic', 'numpy', 'aiohttp'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=sys.path[0] or None)


def test_an_unknown_command_is_wrong_usage(kvroute):
    ran = kvroute("fly")
    assert ran.code == exits.USAGE
    assert "No such command" in ran.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("sned hi", "kvroute send"), ("audti recent", "kvroute audit"), ("audit recnt", "kvroute audit recent"),
        ("worker drian w1", "kvroute worker drain"), ("drain w1", "kvroute worker drain"), ("why x", "kvroute explain"),
        ("dlq lst", "kvroute dlq list"),
    ],
)  # fmt: skip
def test_a_mistyped_command_gets_a_suggestion(kvroute, line, meant):
    ran = kvroute(*line.split())
    assert (ran.code, f"Did you mean `{meant}`?" in ran.err) == (exits.USAGE, True)


def test_commands_that_are_suggested_exist():
    for words in ELSEWHERE.values():
        command = cli
        for word in words.split():
            command = command.get_command(click.Context(command), word)
            assert command is not None, words


@pytest.mark.parametrize(
    ("error", "code"), [(KvrouteError("x"), 1), (ConfigError("x"), 2), (Transient("x"), 3), (exits.Away("x"), 3)]
)
def test_errors_have_exit_codes(error, code):
    assert exits.code_of(error) == code


def test_an_error_is_one_line_without_a_traceback(kvroute, monkeypatch):
    monkeypatch.setenv("KVROUTE_CONCURRENCY", "many")
    ran = kvroute("config")
    assert ran.code == exits.USAGE
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("kvroute: KVROUTE_CONCURRENCY")
    assert ran.out == ""


def test_a_missing_config_file_is_named(kvroute):
    ran = kvroute("config", "--config", "nowhere.toml")
    assert ran.code == exits.USAGE
    assert "nowhere.toml" in ran.err


def test_config_shows_values_origins_and_hides_secrets(kvroute, monkeypatch, tmp_path):
    (tmp_path / "kvroute.toml").write_text('[kafka]\nbootstrap = "kafka:9092"\n')
    monkeypatch.setenv("KVROUTE_KAFKA_SASL_PASSWORD", "hidden-one")
    monkeypatch.setenv("KVROUTE_DATABASE_URL", "postgresql://u:hidden-two@db/kvroute")
    ran = kvroute("config", "--config", "kvroute.toml")
    rows = {row["setting"]: row for row in ran.value}
    assert rows["kafka_bootstrap"]["value"] == "kafka:9092"
    assert rows["kafka_bootstrap"]["origin"].endswith("kvroute.toml")
    assert rows["kafka_sasl_password"]["origin"] == "environment"
    assert rows["concurrency"]["origin"] == "default"
    assert rows["concurrency"]["variable"] == "KVROUTE_CONCURRENCY"
    assert "hidden-" not in ran.out


def test_config_can_be_narrowed_to_what_was_changed(kvroute, monkeypatch):
    monkeypatch.setenv("KVROUTE_CONCURRENCY", "7")
    assert [row["setting"] for row in kvroute("config", "--changed").value] == ["concurrency"]


def test_config_points_at_names_in_the_environment_it_does_not_know(kvroute, monkeypatch):
    monkeypatch.setenv("KVROUTE_CONCURENCY", "7")
    assert "KVROUTE_CONCURENCY" in kvroute("config").err


def test_version_names_the_libraries(kvroute):
    assert {"kvroute", "python", "aiokafka"} <= kvroute("version").value.keys()
    assert kvroute("version", "--table").out.startswith("kvroute ")
