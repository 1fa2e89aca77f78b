"""What a decode process does first. Imports next to nothing: every process pays for it."""

from __future__ import annotations

import os
import resource
import signal
import threading
from multiprocessing import parent_process


def prepare_child(memory_bytes: int | None = None) -> None:
    """Leave Ctrl-C to the parent, which ends its children itself; and end when the parent was killed.

    With ``memory_bytes`` asking for more memory of its own raises MemoryError (on Linux).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
