"""The idempotent pipeline: scripted cases, then a search against a naive broker."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.client.core.sequencer import (
    Failed,
    Forgotten,
    Held,
    Outcome,
    Released,
    Retry,
    Sequencer,
    Stranded,
)
from weir.errors import (
    BadChecksum,
    Fenced,
    NotLeader,
    Overloaded,
    PartitionEnded,
    ProducerExpired,
    Refused,
    SequenceGap,
    SequenceReused,
    TooLarge,
    Unavailable,
    UnknownProducer,
)
from weir.protocol.client.messages import Confirm


def pipeline(batches: int, window: int = 8) -> tuple[Sequencer[int], list[Held[int]]]:
    """A pipeline with batches of 10 messages, each sent under its number from 1 on."""
    sequencer: Sequencer[int] = Sequencer(window)
    held = []
    for i in range(batches):
        assert sequencer.room
        held.append(sequencer.hold(memoryview(b"%d" % i), 10, i))
    send_all(sequencer, 1)
    return sequencer, held


def send_all(sequencer: Sequencer[int], correlation: int) -> list[int]:
    sent = []
    while (held := sequencer.to_send()) is not None:
        sequencer.sent(held, correlation + len(sent))
        sent.append(held.owner)
    return sent


def owners(outcomes: list[Outcome[int]]) -> list[int]:
    return [one.held.owner for one in outcomes if isinstance(one, Released | Failed)]


def test_the_window_is_what_was_asked_and_at_most_64() -> None:
    sequencer, _ = pipeline(3, window=3)
    assert not sequencer.room
    sequencer.answered(1, Confirm(0, 1))
    assert sequencer.room
    assert Sequencer[int](1_000).window == 64


def test_sequences_follow_counts() -> None:
    _, held = pipeline(3)
    assert [batch.sequence for batch in held] == [0, 10, 20]


def test_confirms_release_in_sequence_order() -> None:
    sequencer, _ = pipeline(3)
    assert sequencer.answered(2, Confirm(10, 5)) == []
    assert owners(sequencer.answered(1, Confirm(0, 4))) == [0, 1]
    assert owners(sequencer.answered(3, Confirm(20, 6))) == [2]
    assert len(sequencer) == 0


def test_what_was_only_received_and_is_lost_begins_anew_under_other_numbers() -> None:
    """Counterexample 19: the next leader's log ends before all that is still held."""
    sequencer: Sequencer[int] = Sequencer(8, forgets=True)
    for i in range(4):
        sequencer.hold(memoryview(b"%d" % i), 10, i)
    send_all(sequencer, 1)
    assert owners(sequencer.answered(1, Confirm(-1, 4))) == [0]
    (forgotten,) = sequencer.answered(2, SequenceGap("gap", 0))
    assert isinstance(forgotten, Forgotten)
    assert sequencer.answered(3, SequenceGap("gap", 0)) == []  # it says nothing new
    assert sequencer.to_send() is None
    sequencer.renumber(lambda data, sequence: memoryview(b"%s at %d" % (data, sequence)))
    assert [(one.sequence, bytes(one.data)) for one in sequencer.held] == [
        (0, b"1 at 0"),
        (10, b"2 at 10"),
        (20, b"3 at 20"),
    ]
    assert sequencer.next_sequence == 30
    assert send_all(sequencer, 11) == [1, 2, 3]
    assert owners(sequencer.answered(11, Confirm(-1, 5))) == [1]


def test_a_gap_that_can_be_filled_is_filled_also_where_confirms_may_be_lost() -> None:
    sequencer: Sequencer[int] = Sequencer(8, forgets=True)
    for i in range(3):
        sequencer.hold(memoryview(b"%d" % i), 10, i)
    send_all(sequencer, 1)
    (retry,) = sequencer.answered(2, SequenceGap("gap", 0))
    assert isinstance(retry, Retry)
    sequencer.resume()
    assert send_all(sequencer, 4) == [0, 1, 2]


def test_a_bad_checksum_sends_that_batch_and_all_behind_it_again() -> None:
    sequencer, _ = pipeline(3)
    (retry,) = sequencer.answered(2, BadChecksum("damaged"))
    assert isinstance(retry, Retry)
    assert retry.strikes == 1
    assert sequencer.to_send() is None  # until resumed
    sequencer.resume()
    assert send_all(sequencer, 4) == [1, 2]


def test_refusals_of_older_sends_say_nothing_new() -> None:
    sequencer, _ = pipeline(3)
    sequencer.answered(2, BadChecksum("damaged"))
    sequencer.resume()
    assert send_all(sequencer, 4) == [1, 2]
    assert sequencer.answered(3, SequenceGap("gap", 10)) == []
    assert send_all(sequencer, 6) == []


def test_a_confirm_of_an_older_send_still_confirms() -> None:
    sequencer, _ = pipeline(2)
    sequencer.answered(1, Overloaded("busy"))
    assert owners(sequencer.answered(2, Confirm(10, 2))) == []
    sequencer.resume()
    assert send_all(sequencer, 3) == [0]  # 1 is in the log
    assert owners(sequencer.answered(3, Confirm(0, 1, True))) == [0, 1]


def test_a_gap_rewinds_to_the_expected_sequence() -> None:
    sequencer, _ = pipeline(4)
    (retry,) = sequencer.answered(3, SequenceGap("gap", 10))
    assert isinstance(retry, Retry)
    sequencer.resume()
    assert send_all(sequencer, 5) == [1, 2, 3]


@pytest.mark.parametrize("expected", [5, 30, 40])
def test_a_gap_that_no_batch_can_fill_is_final(expected: int) -> None:
    sequencer, _ = pipeline(4)
    outcomes = sequencer.answered(3, SequenceGap("gap", expected))
    assert owners(outcomes) == [0, 1, 2, 3]
    assert all(isinstance(outcome, Failed) for outcome in outcomes)
    assert not sequencer.room


def test_a_gap_where_a_confirmed_batch_was_is_final() -> None:
    sequencer, _ = pipeline(3)
    sequencer.answered(2, Confirm(10, 1))  # the broker forgot what it confirmed
    outcomes = sequencer.answered(3, SequenceGap("gap", 10))
    assert [type(outcome) for outcome in outcomes] == [Failed, Released, Failed]


@pytest.mark.parametrize("error", [Overloaded, Unavailable, NotLeader])
def test_strikes_count_up_until_a_confirm(error: type[Refused]) -> None:
    sequencer, _ = pipeline(1)
    for strike in (1, 2, 3):
        (retry,) = sequencer.answered(strike, error("later", 7))
        assert isinstance(retry, Retry)
        assert retry.strikes == strike
        sequencer.resume()
        assert send_all(sequencer, strike + 1) == [0]
    sequencer.answered(4, Confirm(0, 1))
    sequencer.hold(memoryview(b"1"), 10, 1)
    send_all(sequencer, 5)
    (retry,) = sequencer.answered(5, error("later"))
    assert isinstance(retry, Retry)
    assert retry.strikes == 1


@pytest.mark.parametrize(
    "error", [Fenced, ProducerExpired, SequenceReused, UnknownProducer, TooLarge]
)
def test_final_refusals_fail_all_that_is_not_confirmed(error: type[Refused]) -> None:
    sequencer, _ = pipeline(3)
    sequencer.answered(2, Confirm(10, 1))
    first, second, third = sequencer.answered(1, error("no"))
    assert isinstance(first, Failed)
    assert isinstance(second, Released)  # it is in the log, whatever became of the others
    assert isinstance(third, Failed)
    assert isinstance(sequencer.error, error)
    assert sequencer.to_send() is None
    assert sequencer.answered(3, Confirm(20, 3)) == []


def test_after_a_lost_connection_all_unconfirmed_go_out_again_with_the_same_bytes() -> None:
    sequencer, held = pipeline(3)
    before = [bytes(batch.data) for batch in held]
    sequencer.answered(1, Confirm(0, 1))
    sequencer.lost()
    assert sequencer.answered(2, Confirm(10, 2)) == []  # a number of the lost connection
    assert send_all(sequencer, 1) == [1, 2]  # numbers may begin anew
    assert [bytes(batch.data) for batch in held] == before
    assert owners(sequencer.answered(1, Confirm(10, 2))) == [1]


def test_what_an_ended_partition_refuses_is_given_back_behind_what_it_took() -> None:
    sequencer, (first, second, third) = pipeline(3)
    end = PartitionEnded("it has ended")
    assert sequencer.answered(2, end) == [], "what was sent before it may still be confirmed"
    assert sequencer.to_send() is None
    assert not sequencer.room
    sequencer.lost()
    assert sequencer.to_send() is first, "and is asked for again; the rest is not"
    sequencer.sent(first, 9)
    assert sequencer.to_send() is None
    released, stranded = sequencer.answered(9, Confirm(0, 7, True))
    assert isinstance(released, Released)
    assert isinstance(stranded, Stranded)
    assert stranded.held == [second, third]
    assert sequencer.error is end
    assert sequencer.answered(3, end) == []


def test_an_ended_partition_may_have_taken_nothing_or_all() -> None:
    sequencer, held = pipeline(2)
    end = PartitionEnded("it has ended")
    assert sequencer.answered(2, end) == []
    (stranded,) = sequencer.answered(1, end)
    assert isinstance(stranded, Stranded)
    assert stranded.held == held
    sequencer, (first, second) = pipeline(2)
    sequencer.answered(1, Confirm(0, 7))
    (stranded,) = sequencer.answered(2, end)
    assert isinstance(stranded, Stranded)
    assert stranded.held == [second]
    assert first.confirm is not None


class ExactlyOnce(RuleBasedStateMachine):
    """A pipeline and a naive broker, with a network that loses, damages and ends at will."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer: Sequencer[int] = Sequencer(5)
        self.made: list[tuple[int, bytes]] = []
        self.released: list[int] = []
        self.log: list[tuple[int, bytes]] = []  # the broker: (first sequence, bytes)
        self.expected = 0
        self.requests: deque[tuple[int, int, int, bytes]] = deque()
        self.answers: deque[tuple[int, Confirm | Refused]] = deque()
        self.last_send = 0
        self.must_resume = False

    @precondition(lambda self: self.sequencer.room)
    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        number = len(self.made)
        data = b"batch %d" % number
        self.made.append((self.sequencer.next_sequence, data))
        self.sequencer.hold(memoryview(data), count, number)

    @rule(most=st.integers(1, 4))
    def send(self, most: int) -> None:
        for _ in range(most):
            if (held := self.sequencer.to_send()) is None:
                return
            self.last_send += 1
            self.sequencer.sent(held, self.last_send)
            self.requests.append((self.last_send, held.sequence, held.count, bytes(held.data)))

    @precondition(lambda self: self.requests)
    @rule(fault=st.sampled_from([None, None, None, "damage", "busy", "moved"]))
    def serve(self, fault: str | None) -> None:
        correlation, sequence, count, data = self.requests.popleft()
        self.answers.append((correlation, self.decide(sequence, count, data, fault)))

    def decide(
        self, sequence: int, count: int, data: bytes, fault: str | None
    ) -> Confirm | Refused:
        if fault == "damage":
            return BadChecksum("damaged")
        if fault == "busy":
            return Overloaded("busy", 10)
        if fault == "moved":
            return NotLeader("moved")
        if sequence == self.expected:
            self.log.append((sequence, data))
            self.expected += count
            return Confirm(sequence, len(self.log))
        if sequence > self.expected:
            return SequenceGap("gap", self.expected)
        place = [first for first, _ in self.log].index(sequence)
        if self.log[place][1] != data or place < len(self.log) - 64:
            return SequenceReused("other bytes")
        return Confirm(sequence, place + 1, True)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.answers) - 1), label="answer")
        correlation, reply = self.answers[at]
        del self.answers[at]
        self.take(correlation, reply)

    def take(self, correlation: int, reply: Confirm | Refused) -> None:
        for outcome in self.sequencer.answered(correlation, reply):
            assert not isinstance(outcome, Failed), outcome
            if isinstance(outcome, Retry):
                self.must_resume = True
            else:
                self.released.append(outcome.held.owner)

    @precondition(lambda self: self.must_resume)
    @rule()
    def resume(self) -> None:
        self.must_resume = False
        self.sequencer.resume()

    @rule(arrive=st.integers(0, 3))
    def disconnect(self, arrive: int) -> None:
        """Some requests still reach the broker; no answer reaches the client."""
        for _ in range(min(arrive, len(self.requests))):
            _, sequence, count, data = self.requests.popleft()
            self.decide(sequence, count, data, None)
        self.requests.clear()
        self.answers.clear()
        self.sequencer.lost()

    @invariant()
    def landed_is_a_prefix_of_made(self) -> None:
        assert self.log == self.made[: len(self.log)]

    @invariant()
    def released_is_in_order_and_landed(self) -> None:
        assert self.released == [*range(len(self.released))]
        assert len(self.released) <= len(self.log)

    def teardown(self) -> None:
        """Without faults, everything lands and is released, in bounded time."""
        for _ in range(3 * len(self.made) + 10):
            self.resume()
            self.send(100)
            while self.requests:
                self.serve(None)
            while self.answers:
                self.take(*self.answers.popleft())
        assert self.log == self.made
        assert self.released == [*range(len(self.made))]


TestExactlyOnce = ExactlyOnce.TestCase
