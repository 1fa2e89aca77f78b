"""Functions for other processes to run; imports nothing heavy."""

from __future__ import annotations

import os
import time


def crash() -> None:
    """End the process the hard way, as a native library does."""
    os._exit(11)


def hang() -> None:
    """Never return."""
    time.sleep(600)


def pid() -> int:
    """Which process this is."""
    return os.getpid()
