"""An answer is the pieces of one attempt, in order, once."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.work import LOST_INDEX, Response, ResponseError
from services.gateway.binding import EARLY_PIECES, Binding, Broken, Source


def piece(index: int, *, attempt: int = 1, worker: str | None = "w1", epoch: int = 5, final: bool = False,
          error: ResponseError | None = None) -> Response:  # fmt: skip
    return Response(
        request_id="r", attempt=attempt, worker_id=worker, epoch=epoch if worker else None, index=index,
        chunk=f"{attempt}{worker}{index} ", final=final, error=error,
    )  # fmt: skip


def answer(length: int, **of: object) -> list[Response]:
    return [piece(index, final=index == length - 1, **of) for index in range(length)]  # type: ignore[arg-type]


def text(outcome: list[Response | Broken]) -> str:
    return "".join(each.chunk if isinstance(each, Response) else f"<{each.error.code}>" for each in outcome)


def play(pieces: list[Response]) -> tuple[str, Binding]:
    binding = Binding()
    out: list[Response | Broken] = []
    for each in pieces:
        out += binding.take(each)
    return text(out), binding


WHOLE = text(list(answer(6)))


def test_two_ranks_of_one_worker_are_two_sources() -> None:
    mine, others = answer(3), [each.model_copy(update={"dp_rank": 1, "chunk": "other "}) for each in answer(3)]
    out, binding = play([mine[0], others[0], others[1], mine[1], others[2], mine[2]])
    assert (out, binding.done) == (text(list(mine)), True)


def test_the_routers_word_of_a_loss_is_for_others() -> None:
    lost = piece(LOST_INDEX, final=True, error=ResponseError(status=502, type="server_error", message="", code="x"))
    out, binding = play([answer(3)[0], lost, *answer(3)[1:]])
    assert (out, binding.done) == (text(list(answer(3))), True)


CANCELLED = ResponseError(status=499, type="cancelled", message="cancelled", code="cancelled")


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=10))
def test_any_order_and_any_duplicates_give_the_answer_once(order: list[int], again: list[int]) -> None:
    pieces = answer(6)
    out, binding = play([pieces[index] for index in (*again, *order, *again)])
    assert out == WHOLE
    assert binding.done


@given(st.data())
def test_of_any_mixture_of_sources_at_most_one_answer_comes_out_and_nothing_after_its_end(data: st.DataObject) -> None:
    sources = [answer(4, attempt=attempt, worker=worker) for attempt in (1, 2, 3) for worker in ("w1", "w2")]
    pool = [each for source in sources for each in source]
    pieces = data.draw(st.lists(st.sampled_from(pool), max_size=40))
    binding = Binding()
    out: list[Response | Broken] = []
    for each in pieces:
        out += binding.take(each)
    forwarded = [each for each in out if isinstance(each, Response)]
    assert len({Source.of(each) for each in forwarded}) <= 1
    assert [each.index for each in forwarded] == list(range(len(forwarded)))
    ends = [each for each in out if isinstance(each, Broken) or each.final]
    assert len(ends) <= 1
    assert not ends or (out[-1] is ends[0] and binding.done)


@given(st.integers(2, 5), st.integers(0, 3))
def test_the_highest_attempt_answers_when_nothing_was_forwarded_before(attempts: int, lost: int) -> None:
    early = [piece(index, attempt=attempt) for attempt in range(1, attempts) for index in range(1, 1 + lost)]
    out, _ = play(early + answer(3, attempt=attempts))
    assert out == text(list(answer(3, attempt=attempts)))


class TestAttempts:
    def test_a_higher_one_after_output_breaks_the_answer(self) -> None:
        out, binding = play([piece(0), piece(0, attempt=2), piece(1, attempt=2, final=True), piece(1, final=True)])
        assert out == text([piece(0)]) + "<attempt_superseded>"
        assert binding.done

    def test_a_lower_one_is_late(self) -> None:
        out, _ = play([piece(1, attempt=2, final=True), *answer(2, attempt=1), piece(0, attempt=2)])
        assert out == text(list(answer(2, attempt=2)))

    def test_a_stage_speaks_as_attempt_zero(self) -> None:
        refused = ResponseError(status=503, type="server_error", message="no worker", code="no_worker")
        out, binding = play([piece(0, attempt=0, worker=None, final=True, error=refused)])
        assert binding.done
        assert out

    def test_a_stage_is_not_heard_once_an_attempt_answers(self) -> None:
        refused = ResponseError(status=504, type="timeout_error", message="late", code="deadline_exceeded")
        pieces = answer(3)
        out, _ = play([pieces[0], piece(0, attempt=0, worker=None, final=True, error=refused), *pieces[1:]])
        assert out == text(list(pieces))


class TestTwoWorkersOfOneAttempt:
    """Two routers may send the same attempt to two workers; the first to be forwarded is the answer."""

    def test_the_first_output_wins(self) -> None:
        out, _ = play([piece(0), piece(0, worker="w2"), piece(1, worker="w2", final=True), piece(1, final=True)])
        assert out == text(list(answer(2)))

    def test_pieces_that_are_early_bind_nobody(self) -> None:
        out, _ = play([piece(1, final=True), *answer(2, worker="w2")])
        assert out == text(list(answer(2, worker="w2")))

    def test_another_epoch_is_another_source(self) -> None:
        out, _ = play([piece(0, epoch=5), piece(1, epoch=6, final=True), piece(1, epoch=5, final=True)])
        assert out == text(list(answer(2)))

    def test_the_losers_farewell_is_not_the_answer(self) -> None:
        out, _ = play([piece(0, worker="w2", final=True, error=CANCELLED), *answer(2)])
        assert out == text(list(answer(2)))

    def test_a_bound_workers_farewell_is(self) -> None:
        out, binding = play([piece(0), piece(1, final=True, error=CANCELLED)])
        assert binding.done
        assert out.startswith(text([piece(0)]))

    def test_a_stage_may_end_a_cancelled_request(self) -> None:
        _, binding = play([piece(0, attempt=0, worker=None, final=True, error=CANCELLED)])
        assert binding.done


class TestEnds:
    def test_a_bound_workers_end_breaks_the_answer_once(self) -> None:
        _, binding = play([piece(0)])
        assert text(binding.source_ended(Source("x", "w1", 5))) == ""  # type: ignore[arg-type]
        assert text(binding.source_ended(Source(1, "w1", 5))) == "<worker_lost>"
        assert binding.source_ended(Source(1, "w1", 5)) == []
        assert binding.take(piece(1, final=True)) == []

    def test_before_output_only_what_it_sent_early_is_forgotten(self) -> None:
        binding = Binding()
        assert binding.take(piece(1)) == []
        assert binding.source_ended(Source(1, "w1", 5)) == []
        assert text(binding.take(piece(0))) == text([piece(0)])
        assert text(binding.take(piece(1, final=True))) == text([piece(1)])

    def test_after_the_final_piece_nothing_breaks(self) -> None:
        _, binding = play(answer(2))
        assert binding.break_off("x", "y") == []

    def test_pieces_that_never_stop_being_early_break_the_answer(self) -> None:
        out, binding = play([piece(index) for index in range(1, EARLY_PIECES + 3)])
        assert out == "<pieces_missing>"
        assert binding.done

    def test_it_is_known_when_a_piece_is_missing(self) -> None:
        _, binding = play([piece(0), piece(2)])
        assert binding.waits_for_piece
        binding.take(piece(1))
        assert not binding.waits_for_piece
