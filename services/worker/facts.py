"""The lifecycle facts an agent states about an attempt. Pure."""

from __future__ import annotations

from typing import Any

from schemas.lifecycle import Lifecycle, LifecycleEvent, Usage
from schemas.work import ResponseError, Work
from services.runtime.errors import Refused

_DETAIL_LIMIT = 500


class Facts:
    """States facts about one attempt."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def first_token(self, now_ms: int) -> Lifecycle:
        """Output has begun."""
        return self._fact(LifecycleEvent.FIRST_TOKEN, now_ms, before_output=False)

    def finished(self, now_ms: int, usage: Usage | None) -> Lifecycle:
        """The engine answered to the end."""
        return self._fact(LifecycleEvent.FINISHED, now_ms, usage=usage, status=200, before_output=False)

    def failed(
        self, now_ms: int, error: ResponseError, *, retryable: bool, before_output: bool, usage: Usage | None = None
    ) -> Lifecycle:
        """The engine did not."""
        return self._fact(
            LifecycleEvent.FAILED, now_ms, status=error.status, code=error.code, detail=error.message[:_DETAIL_LIMIT],
            retryable=retryable, before_output=before_output, usage=usage,
        )

    def cancelled(self, now_ms: int, *, before_output: bool) -> Lifecycle:
        """The client went away."""
        return self._fact(LifecycleEvent.CANCELLED, now_ms, status=499, code="cancelled", before_output=before_output)

    def refused(self, now_ms: int, refused: Refused, *, retryable: bool) -> Lifecycle:
        """This agent did not run it."""
        return self._fact(
            LifecycleEvent.REFUSED, now_ms, status=refused.status, code=refused.code,
            detail=str(refused)[:_DETAIL_LIMIT], retryable=retryable,
        )

    def _fact(self, event: LifecycleEvent, now_ms: int, **more: Any) -> Lifecycle:
        work = self._work
        return Lifecycle(
            request_id=work.request_id, tenant=work.tenant, attempt=work.attempt, event=event, stage="agent",
            at_ms=now_ms, created_at_ms=work.created_at_ms, model=work.model, worker_id=work.worker_id,
            dp_rank=work.dp_rank, epoch=work.epoch, stream=work.stream, session_id=work.session_id,
            deadline_ms=work.deadline_ms, **more,
        )
