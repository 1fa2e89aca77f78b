"""The pulse of a stage: commits, metrics, and whether it makes progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.runtime import metrics
from services.runtime.bus import Record
from services.runtime.logs import get_logger
from services.runtime.loop_lag import LoopLag

if TYPE_CHECKING:
    from services.runtime.assigned import AssignedReader
    from services.runtime.intake import Intake
    from services.runtime.service import Service
    from services.runtime.subscription import Subscription

COMMIT_SECONDS = 0.2
STALL_SECONDS = 660.0
"""No record of many in hand has finished for this long: longer than the longest deadline, so something hangs."""
SLOW_SEND_SECONDS = 10.0
READER_STALL_SECONDS = 60.0
_log = get_logger("runtime.vitals")


class WitnessOf:
    """Counts what becomes of a stage's records of one topic."""

    def __init__(self, stage: str, topic: str) -> None:
        self._stage = stage
        self._topic = metrics.topic_label(topic)
        self._handled = metrics.RECORDS_HANDLED.labels(stage, self._topic)
        self._seconds = metrics.HANDLE_SECONDS.labels(stage, self._topic)

    def handled(self, record: Record, seconds: float) -> None:
        """A handler returned."""
        self._handled.inc()
        self._seconds.observe(seconds)

    def retried(self, record: Record, code: str) -> None:
        """A try failed and there will be another."""
        metrics.RECORDS_RETRIED.labels(self._stage, self._topic, code).inc()

    def buried(self, record: Record, code: str) -> None:
        """A dead letter was stored."""
        metrics.RECORDS_DEAD_LETTERED.labels(self._stage, self._topic, code).inc()


class Vitals:
    """Watches a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.loop_lag = LoopLag()
        self._lagging: dict[str, set[int]] = {}
        self._progress: dict[int, tuple[int, float]] = {}

    async def commit(self) -> None:
        """Commit what can be committed, of every group consumer."""
        await asyncio.gather(*(subscription.intake.commit() for subscription in self._service.subscriptions))

    def commit_failed(self, topic: str, error: Exception) -> None:
        """Count a failed commit: records will be read again, nothing is lost."""
        metrics.COMMIT_FAILURES.labels(self._service.name, topic).inc()
        _log.warning("commit failed", stage=self._service.name, topic=topic, error=f"{type(error).__name__}: {error}")

    async def observe(self) -> None:
        """Set the gauges."""
        service = self._service
        now_ms = service.clock.now_ms()
        sources: list[Subscription | AssignedReader] = [*service.subscriptions, *service.assigned_readers]
        for source in sources:
            topic = metrics.topic_label(source.topic if isinstance(source.topic, str) else source.topic.name)
            metrics.RECORDS_IN_FLIGHT.labels(service.name, topic).set(source.intake.in_flight)
            oldest = source.intake.oldest_ms
            age = 0.0 if oldest is None else max(0.0, (now_ms - oldest) / 1000)
            metrics.OLDEST_UNHANDLED_SECONDS.labels(service.name, topic).set(age)
            self._set_lags(topic, source.lags)
        for subscription in service.subscriptions:
            if not subscription.alive:
                service.fail(RuntimeError(f"the membership in group {subscription.group} broke"))
        metrics.OWN_FAILURES_IN_A_ROW.labels(service.name).set(service.stop_rule.in_a_row)
        metrics.STAGE_READY.labels(service.name).set(int(service.ready))

    def _set_lags(self, topic: str, lags: dict[int, int]) -> None:
        for partition, lag in lags.items():
            metrics.CONSUMER_LAG.labels(self._service.name, topic, str(partition)).set(lag)
        # A partition that another replica reads now must not keep the lag it had here.
        for partition in self._lagging.get(topic, set()) - lags.keys():
            metrics.CONSUMER_LAG.remove(self._service.name, topic, str(partition))
        self._lagging[topic] = set(lags)

    def sick(self) -> list[str]:
        """Why the stage makes no progress; empty when it does or has nothing to do."""
        service = self._service
        reasons = [f"stage gives up: {service.failure!r}"] if service.failure is not None else []
        if service.stop_rule.tripped.is_set():
            reasons.append(f"stage gives up: {service.stop_rule.cause}")
        now = asyncio.get_running_loop().time()
        for number, intake in enumerate(service.intakes):
            if self._stalled(number, intake, now):
                reasons.append(f"{intake.in_flight} records in hand and none finished for {STALL_SECONDS:.0f} s")
        turn = service.reader.last_turn
        if service.projections and turn and now - turn > READER_STALL_SECONDS:
            reasons.append(f"projections were not read for {now - turn:.0f} s")
        return reasons

    def unready(self) -> list[str]:
        """Why no work should come yet, or any more."""
        service = self._service
        reasons = [] if service.phase.name == "RUNNING" else [service.phase.name.lower()]
        if (waiting := service.kafka_sender.waiting_seconds) > SLOW_SEND_SECONDS:
            reasons.append(f"the broker has not taken a record for {waiting:.0f} s")
        reasons += [f"projection of {p.topic.name} is catching up" for p in service.projections if not p.caught_up]
        reasons += [name for name, check in service.checks.items() if not check()]
        return reasons

    def _stalled(self, number: int, intake: Intake, now: float) -> bool:
        finished, since = self._progress.get(number, (-1, now))
        if intake.in_flight == 0 or intake.handled != finished:
            self._progress[number] = (intake.handled, now)
            return False
        return now - since > STALL_SECONDS
