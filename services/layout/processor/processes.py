"""The processes that processors run in: few, with a deadline and a bound on memory, and one that fails is replaced."""

from __future__ import annotations

import queue
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from services.kv.reason import Reason
from services.layout.card import CardError
from services.layout.families.family import NotExact
from services.layout.processor import child
from services.layout.processor.asked import Description, Medium, ProcessorRefused, ProcessorTooSmall
from services.runtime.errors import KvrouteError
from services.runtime.offload import end_process, one_process
from services.runtime.settings import Settings

START_SECONDS = 60.0
"""For a process that has yet to import the library."""

FORGET_SECONDS = 60.0
"""How long a medium that ended its process is refused without asking again."""

T = TypeVar("T")


class NoAnswer(KvrouteError):
    """No process was free in time, or the one that was asked took too long or died."""


class Processes:
    """Asks processors, from any thread: the caller waits. Remembers what they said of each size."""

    def __init__(
        self, count: int, *, seconds: float, memory_bytes: int, remembered: int,
        describe: Callable[[str], Description] = child.describe,
        expand: Callable[[str, Medium], list[int]] = child.expand,
    ) -> None:  # fmt: skip
        """``seconds`` bound one answer, ``memory_bytes`` one process; ``remembered`` sizes are kept.

        The functions run in the processes, so they must be importable by name.
        """
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._remembered = remembered
        self._describe = describe
        self._expand = expand
        self._known: OrderedDict[tuple[str, Medium], list[int] | NotExact] = OrderedDict()
        self._failed: dict[tuple[str, Medium], tuple[float, NotExact]] = {}
        self._lock = Lock()
        self._closed = False
        self._free: queue.Queue[ProcessPoolExecutor | None] = queue.Queue()
        self._alive: set[ProcessPoolExecutor] = set()
        self._warm: set[ProcessPoolExecutor] = set()
        for _ in range(count):
            self._free.put(None)

    @classmethod
    def of(cls, settings: Settings) -> Processes:
        """As the settings say. No process is started before something is asked."""
        return cls(
            settings.processor_processes, seconds=settings.processor_seconds,
            memory_bytes=settings.processor_memory_bytes, remembered=settings.processor_cache,
        )  # fmt: skip

    def describe(self, folder: Path) -> Description:
        """The processor of a model folder. Raises CardError."""
        try:
            return self._run(self._describe, str(folder), seconds=START_SECONDS)
        except (NoAnswer, ProcessorRefused, ProcessorTooSmall) as error:
            raise CardError(f"{folder}: the model's processor can't be used: {error}") from None

    def expand(self, folder: Path, medium: Medium) -> list[int]:
        """Token ids in place of a medium. Raises NotExact."""
        key = (str(folder), medium)
        found = self._recall(key)
        return _said(self._ask(key) if found is None else found)

    def recall(self, folder: Path, medium: Medium) -> list[int]:
        """What ``expand`` said last, without asking anybody. Raises NotExact."""
        found = self._recall((str(folder), medium))
        if found is None:
            detail = f"the model's processor was not asked in time about the {medium.kind}"
            raise NotExact(Reason.BUDGET_EXCEEDED, detail)
        return _said(found)

    def close(self) -> None:
        """End all processes. Nothing is started any more."""
        self._closed = True
        with self._lock:
            alive, self._alive = self._alive, set()
        for executor in alive:
            end_process(executor)

    def _recall(self, key: tuple[str, Medium]) -> list[int] | NotExact | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            failed = self._failed.get(key)
            if failed is None:
                return None
            if time.monotonic() < failed[0]:
                return failed[1]
            del self._failed[key]
            return None

    def _ask(self, key: tuple[str, Medium]) -> list[int] | NotExact:
        folder, medium = key
        said: list[int] | NotExact
        try:
            said = self._run(self._expand, folder, medium, seconds=self._seconds)
        except ProcessorRefused as error:
            said = NotExact(Reason.UNSUPPORTED_MEDIA, f"the model's processor refuses the {medium.kind}: {error}")
        except ProcessorTooSmall as error:
            said = NotExact(Reason.TOO_LARGE, str(error))
        except NoAnswer as error:
            said = NotExact(Reason.BUDGET_EXCEEDED, str(error))
            with self._lock:
                if len(self._failed) >= self._remembered:
                    self._failed.clear()
                self._failed[key] = (time.monotonic() + FORGET_SECONDS, said)
            return said
        with self._lock:
            self._known[key] = said
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)
        return said

    def _run(self, fn: Callable[..., T], *args: Any, seconds: float) -> T:
        executor = self._take(seconds)
        healthy = False
        try:
            # A process that has answered before has the library loaded.
            limit = seconds if executor in self._warm else max(seconds, START_SECONDS)
            result = executor.submit(fn, *args).result(limit)
            healthy = True
            return result
        except TimeoutError:
            raise NoAnswer(f"the processor took longer than {limit:g} s and was ended") from None
        except BrokenProcessPool:
            raise NoAnswer("the processor's process died") from None
        except (ProcessorRefused, ProcessorTooSmall):
            healthy = True
            raise
        except Exception as error:  # whatever else goes wrong between processes
            raise NoAnswer(f"the processor's process gave no answer: {type(error).__name__}") from None
        finally:
            self._give_back(executor, healthy=healthy)

    def _take(self, seconds: float) -> ProcessPoolExecutor:
        try:
            executor = self._free.get(timeout=seconds)
        except queue.Empty:
            raise NoAnswer(f"no processor's process was free within {seconds:g} s") from None
        if executor is None:
            executor = one_process(self._memory_bytes)
            with self._lock:
                self._alive.add(executor)
            if self._closed:
                end_process(executor)
        return executor

    def _give_back(self, executor: ProcessPoolExecutor, *, healthy: bool) -> None:
        if healthy:
            self._warm.add(executor)
            self._free.put(executor)
            return
        with self._lock:
            self._alive.discard(executor)
        self._warm.discard(executor)
        end_process(executor)
        self._free.put(None)


def _said(found: list[int] | NotExact) -> list[int]:
    if isinstance(found, NotExact):
        raise NotExact(found.reason, str(found))  # a new one: tracebacks would grow on one that is kept
    return found
