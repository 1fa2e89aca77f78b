"""Bytes from one process to another: once, bounded, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.runtime.errors import ConfigError
from services.runtime.host_memory import HostMemory


@pytest.fixture
def clock() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def memory(tmp_path: Path, clock: list[float]) -> Callable[..., HostMemory]:
    def make(**options: Any) -> HostMemory:
        given: dict[str, Any] = {"most_bytes": 100, "seconds": 30, "now": lambda: clock[0]}
        return HostMemory(tmp_path / "kvroute", **(given | options))

    return make


def files(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "kvroute")


def test_who_asks_first_gets_it_and_nobody_else(memory: Callable[..., HostMemory], tmp_path: Path) -> None:
    writer, reader = memory(), memory()
    assert writer.put("r/1", b"abc")
    assert reader.take("r/2") is None
    assert reader.take("r/1") == b"abc"
    assert reader.take("r/1") is writer.take("r/1") is None
    assert files(tmp_path) == []


def test_what_is_put_again_is_the_later(memory: Callable[..., HostMemory]) -> None:
    kept = memory()
    kept.put("r", b"abc")
    kept.put("r", b"d")
    assert kept.take("r") == b"d"


def test_what_nobody_takes_is_gone_after_a_while(
    memory: Callable[..., HostMemory], clock: list[float], tmp_path: Path
) -> None:
    kept = memory()
    kept.put("old", b"abc")
    clock[0] += 31
    assert kept.take("old") is None
    kept.put("older", b"abc")
    clock[0] += 31
    kept.put("new", b"d")
    assert len(files(tmp_path)) == 1
    clock[0] += 31
    memory()
    assert files(tmp_path) == []


def test_there_is_never_more_than_the_bound(memory: Callable[..., HostMemory], tmp_path: Path) -> None:
    one, other = memory(), memory()
    assert one.put("a", b"x" * 60)
    assert not other.put("b", b"x" * 60)
    assert other.put("c", b"x" * 40)
    assert not one.put("d", b"x")
    assert one.take("a")
    assert other.put("b", b"x" * 60)
    assert len(files(tmp_path)) == 2


def test_what_a_killed_process_left_is_swept_and_its_lock_is_free(
    memory: Callable[..., HostMemory], clock: list[float], tmp_path: Path
) -> None:
    memory()
    code = (
        "import fcntl, os, pathlib, sys, time; folder = pathlib.Path(sys.argv[1]);"
        "fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX); (folder / '.half').write_bytes(b'x' * 90);"
        "os.utime(folder / '.half', (1e6, 1e6)); print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "kvroute")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"locked\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    kept = memory()
    assert not kept.put("a", b"x" * 20)
    clock[0] += 31
    assert kept.put("a", b"x" * 20)
    assert len(files(tmp_path)) == 1


def test_nobody_else_may_read_it(memory: Callable[..., HostMemory], tmp_path: Path) -> None:
    memory().put("a", b"abc")
    folder = tmp_path / "kvroute"
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600]


def test_a_folder_that_others_can_reach_is_not_used(tmp_path: Path, memory: Callable[..., HostMemory]) -> None:
    (tmp_path / "kvroute").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="not a folder of this user alone"):
        memory()
    (tmp_path / "kvroute").rmdir()
    (tmp_path / "kvroute").symlink_to(tmp_path)
    with pytest.raises(ConfigError):
        memory()
    with pytest.raises(ConfigError, match="can't be used as shared memory"):
        HostMemory(tmp_path / "no" / "where", most_bytes=1, seconds=1)


def test_a_full_memory_is_no_error(memory: Callable[..., HostMemory], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = memory()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "utime", full)
    assert not kept.put("a", b"abc")
    assert kept.take("a") is None
