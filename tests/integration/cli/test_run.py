"""`kvroute run` as a process of its own: gets ready, stops in order, says in one line what is missing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from importlib import import_module

import aiohttp
import pytest
from pydantic import SecretStr

from services.audit import migrate
from services.cli.run import STAGES


def environment(settings, **more):
    own = {name: text for name, text in os.environ.items() if not name.startswith("KVROUTE_")}
    return own | {
        "KVROUTE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
        "KVROUTE_KAFKA_PROFILE": settings.kafka_profile,
        "KVROUTE_TOPIC_PREFIX": settings.topic_prefix,
        "KVROUTE_DATABASE_URL": f"sqlite:///{settings.data_dir}/audit.sqlite3",
        "KVROUTE_DATA_DIR": str(settings.data_dir),
        **more,
    }


async def start(arguments, env):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli.main", *arguments, env=env, stderr=asyncio.subprocess.PIPE
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def ready(port):
    """Wait for /readyz; the test's own timeout bounds it."""
    async with aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_every_stage_can_be_built(stage):
    assert callable(import_module(STAGES[stage]).build)


async def test_a_stage_gets_ready_and_ends_in_order_on_sigterm(settings):
    port = free_port()
    env = environment(settings, KVROUTE_HEALTH_PORT=str(port))
    await migrate.upgrade(settings.model_copy(update={"database_url": SecretStr(env["KVROUTE_DATABASE_URL"])}))
    process = await start(["run", "audit"], env)
    try:
        await ready(port)
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors


async def test_without_a_broker_it_says_so_and_ends_with_3(settings):
    process = await start(["run", "media"], environment(settings, KVROUTE_KAFKA_BOOTSTRAP="127.0.0.1:1"))
    _, errors = await process.communicate()
    assert process.returncode == 3, errors.decode()
    assert b"no broker answers at 127.0.0.1:1" in errors
    assert b"Traceback" not in errors


async def test_a_command_without_a_broker_says_so_in_one_line(settings):
    """What the client library logs of it stood before our own line, and said less."""
    process = await start(["topics", "list"], environment(settings, KVROUTE_KAFKA_BOOTSTRAP="127.0.0.1:1"))
    _, errors = await process.communicate()
    assert process.returncode == 3, errors.decode()
    assert errors.count(b"\n") == 1
    assert errors.startswith(b"kvroute: no broker answers at 127.0.0.1:1")


async def test_a_port_that_is_taken_is_said_in_one_line(settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = await start(["run", "media"], environment(settings, KVROUTE_HEALTH_PORT=port))
        _, errors = await process.communicate()
    assert process.returncode == 2, errors.decode()
    assert b"Traceback" not in errors
    assert f"can't listen on 127.0.0.1:{port} (Address already in use): set KVROUTE_HEALTH_PORT".encode() in errors
