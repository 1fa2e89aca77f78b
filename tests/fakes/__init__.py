"""Fakes that keep the real things' promises: a clock, a sender, and a service without a broker."""

from tests.fakes.bus import FakeSender, Sent
from tests.fakes.clock import FakeClock
from tests.fakes.harness import DeadLetter, Harness

__all__ = ["DeadLetter", "FakeClock", "FakeSender", "Harness", "Sent"]
