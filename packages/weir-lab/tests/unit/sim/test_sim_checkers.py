"""Each checker is silent about an honest history and finds the violation planted in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.model.topic import Mode
from weir.order.clock import stamp_at
from weir.testing.simulator.world import EPOCH_MS
from weir_lab.sim.checkers.judge import CHECKERS, ENTRY_BYTES_MAX, LIVE_WITHIN, violations
from weir_lab.sim.history import (
    Ack,
    Confirmed,
    Extension,
    Fence,
    Grant,
    History,
    Look,
    Operation,
    Publish,
    Record,
    Return,
    Seek,
    Seen,
)

P = ("producer", 7, 0)
#: Their checkers have tests of their own.
ELSEWHERE = {
    "weir_lab.sim.checkers.one_order",
    "weir_lab.sim.checkers.in_turn",
    "weir_lab.sim.checkers.whole",
    "weir_lab.sim.checkers.handled",
    "weir_lab.sim.checkers.applications",
    "weir_lab.sim.checkers.queries",
}


def record(offset: int, stamp: int, sequence: int, *values: bytes) -> Record:
    rows = tuple((P, sequence + i) for i in range(len(values)))
    return Record(offset, values, stamp, rows)


def honest() -> History:
    """Two batches, confirmed, read, granted, acked; b's first grant ran out."""
    history = History(healed=1_000, ended=2_000)
    history.publishes = [
        Publish(0, P, 0, (b"a", b"b"), 10, sends=2, confirms=[Confirmed(20, 0, 5)]),
        Publish(0, P, 2, (b"c",), 30, sends=1, confirms=[Confirmed(40, 2, 6), Confirmed(50, 2, 6)]),
        Publish(0, P, 9, (b"gap",), 35, honest=False, sends=1),
    ]
    history.drained = {0: [record(0, 5, 0, b"a", b"b"), record(2, 6, 2, b"c")]}
    history.seen = [Seen(0, 0, (b"a", b"b"), 5)]
    history.grants = [Grant(0, "c", 11, 0, 2, 1, 60), Grant(0, "c", 12, 1, 3, 2, 70)]
    history.acks = [
        Ack(0, "c", 11, 0, 1, 65, confirmed=80),
        Ack(0, "c", 12, 1, 3, 75, confirmed=90),
        Ack(0, "c", 11, 1, 2, 95, confirmed=99, late=frozenset({1})),
    ]
    history.operations = [Operation("a batch", 10, 20), Operation("a fetch", 900, 1_500)]
    history.looks = [Look(0, 30, 2), Look(0, 45, 3), Look(0, 40, 2)]
    return history


def a_key_overtaken(history: History) -> None:
    history.modes[0, "c"] = Mode.KEYED
    history.keys = {b"a": b"k", b"b": b"k"}
    history.grants[1].arrived = history.acks[0].sent - 1


def a_standby_overtakes(history: History) -> None:
    history.modes[0, "c"] = Mode.ORDERED
    history.grants[1].arrived = history.acks[0].sent - 1
    history.grants[1].holder = "standby#1"


def granted_too_early(history: History) -> None:
    history.dues[b"b"] = 11
    history.grants[1].stamp = stamp_at(10)


def granted_within_a_lease(history: History) -> None:
    history.grants[0].lease_ms = 1
    history.grants[1].arrived = 100


def granted_within_an_extension(history: History) -> None:
    history.grants[0].lease_ms = 1
    history.extensions = [Extension(0, "c", 11, 5, 70, confirmed=80)]
    history.grants[1].arrived = 4_000


def refused_within_a_lease(history: History) -> None:
    history.grants[0].lease_ms = 1
    history.grants[1].arrived = 5_000
    history.acks[2].confirmed, history.acks[2].stale = -1, 99


def not_extended_within_a_lease(history: History) -> None:
    history.grants[1].lease_ms = 1
    history.acks[1].sent, history.acks[1].confirmed = 900, 950
    history.extensions = [Extension(0, "c", 12, 5, 100, stale=800)]


def granted_while_held_back(history: History) -> None:
    history.returns = [Return(0, "c", 11, 1, 2, 1, False, 66, confirmed=68)]
    history.grants[1].arrived = 100


def told_twice(history: History) -> None:
    history.acks[2].late = frozenset()


def lost(history: History) -> None:
    history.drained[0].pop()


def stamped_ahead(history: History) -> None:
    history.one_wrong_until = 41
    far = stamp_at(EPOCH_MS + 3_000)
    history.publishes[1].confirms[0] = Confirmed(40, 2, far)


def moved(history: History) -> None:
    history.publishes[1].confirms[0] = Confirmed(40, 3, 6)


def seen_and_gone(history: History) -> None:
    history.seen.append(Seen(0, 3, (b"d",), 7))


def twice(history: History) -> None:
    history.drained[0].append(record(3, 7, 2, b"c"))


def two_answers(history: History) -> None:
    history.publishes[1].confirms.append(Confirmed(60, 2, 8))


def falling(history: History) -> None:
    history.drained[0][1] = record(2, 5, 2, b"c")


def skipped(history: History) -> None:
    history.drained[0][1] = record(2, 6, 3, b"c")


def hole(history: History) -> None:
    history.drained[0][1] = record(4, 6, 2, b"c")


def overtaken(history: History) -> None:
    history.publishes[0].sent = 45


def granted_after_ack(history: History) -> None:
    history.grants.append(Grant(0, "c", 20, 0, 1, 2, 85))


def attempts_forgotten(history: History) -> None:
    history.grants[0].attempts = 3


def a_failure_forgotten(history: History) -> None:
    history.grants[1].attempts = 1
    history.returns.append(Return(0, "c", 11, 1, 2, 0, False, 66, confirmed=67))


def an_attempt_alone_forgotten(history: History) -> None:
    history.grants[0] = Grant(0, "c", 11, 1, 2, 1, 60)
    history.grants[1].attempts = 1
    del history.acks[0]


def an_attempt_of_whoever_told_nothing_forgotten(history: History) -> None:
    an_attempt_alone_forgotten(history)
    history.grants[0].tells = True
    history.grants[0].holder, history.grants[1].holder = "a#1", "b#1"


def never_granted(history: History) -> None:
    history.drained[0].append(record(3, 7, 3, b"d"))


def never_granted_again(history: History) -> None:
    del history.acks[1:]


def granted_without_its_message(history: History) -> None:
    grant = history.grants[-1]
    grant.lacks = frozenset(range(grant.first, grant.behind))


def mischief_confirmed(history: History) -> None:
    history.publishes[2].confirms.append(Confirmed(50, 3, 7))


def mischief_stored(history: History) -> None:
    history.drained[0].append(record(3, 7, 3, b"gap"))


def invented(history: History) -> None:
    history.drained[0].append(record(3, 7, 3, b"nobody"))


def stuck(history: History) -> None:
    history.operations.append(Operation("a pull", 500))


def late(history: History) -> None:
    history.operations.append(Operation("a pull", 500, 1_001 + LIVE_WITHIN))


def sought(history: History) -> None:
    """An operator sent the cluster back to 1; what was done is granted and acked anew."""
    history.seeks = [Seek(0, "c", 1, 100, settled=110, done=True)]
    history.grants.append(Grant(0, "c", 15, 1, 3, 1, 115, 120))
    history.acks.append(Ack(0, "c", 15, 1, 3, 130, confirmed=140))


def left_out_after_a_seek(history: History) -> None:
    sought(history)
    history.grants[-1].first = 2


def not_acked_after_a_seek(history: History) -> None:
    sought(history)
    history.acks.pop()


def granted_after_ack_and_no_seek_between(history: History) -> None:
    sought(history)
    history.grants.append(Grant(0, "c", 20, 0, 1, 3, 95, 99))


def retained(history: History) -> None:
    """The first batch is past retention, as it should be."""
    history.retention_bytes = 600
    history.starts = {0: 2}
    history.drained = {0: [record(2, 6, 2, b"c")._replace(size=600)]}


def seen_otherwise_before_it_went(history: History) -> None:
    retained(history)
    history.seen = [Seen(0, 0, (b"a", b"z"), 5)]


def an_older_epoch_goes_on(history: History) -> None:
    newer, older = ("producer", 7, 1), P
    history.publishes.append(Publish(0, newer, 0, (b"n",), 100))
    history.publishes.append(Publish(0, older, 3, (b"o",), 100))
    history.drained[0].append(Record(3, (b"n",), 7, ((newer, 0),)))
    history.drained[0].append(Record(4, (b"o",), 8, ((older, 3),)))


def a_stale_look(history: History) -> None:
    history.looks = [Look(0, 45, 2)]


def all_is_gone(history: History) -> None:
    retained(history)
    history.starts, history.drained = {0: 3}, {0: []}


def too_much_is_gone(history: History) -> None:
    retained(history)
    history.retention_bytes = 600 + ENTRY_BYTES_MAX


def too_much_is_gone_since_it_was_drained(history: History) -> None:
    too_much_is_gone(history)
    history.drained[0].insert(0, record(0, 5, 0, b"a", b"b")._replace(size=700))


def gone_without_retention(history: History) -> None:
    retained(history)
    history.retention_bytes = 0


def fenced(history: History) -> None:
    """A new epoch of the producer was granted when three messages were there."""
    history.fences = [Fence(0, 7, 1, 3)]


def written_behind_a_fence(history: History) -> None:
    history.fences = [Fence(0, 7, 1, 2)]


def chunked(history: History) -> None:
    """A chunk that nobody sees took the sequence before c's."""
    history.publishes.append(Publish(0, P, 2, (), 25, sends=1))
    history.publishes[1].sequence = 3
    history.drained[0][1] = record(2, 6, 3, b"c")


PLANTED: list[tuple[str, Callable[[History], None]]] = [
    ("Durable", lost),
    ("Durable", moved),
    ("Durable", seen_and_gone),
    ("Durable", seen_otherwise_before_it_went),
    ("OneOffset", twice),
    ("OneOffset", two_answers),
    ("RisingStamps", falling),
    ("RisingStamps", skipped),
    ("RisingStamps", hole),
    ("RealTime", overtaken),
    ("RealTime", a_stale_look),
    ("Fenced", written_behind_a_fence),
    ("Fenced", an_older_epoch_goes_on),
    ("Retained", all_is_gone),
    ("Retained", too_much_is_gone),
    ("Retained", too_much_is_gone_since_it_was_drained),
    ("Retained", gone_without_retention),
    ("AckedOnce", granted_after_ack),
    ("AckedOnce", attempts_forgotten),
    ("AckedOnce", a_failure_forgotten),
    ("AckedOnce", an_attempt_alone_forgotten),
    ("AckedOnce", an_attempt_of_whoever_told_nothing_forgotten),
    ("AckedOnce", never_granted),
    ("AckedOnce", never_granted_again),
    ("AckedOnce", left_out_after_a_seek),
    ("AckedOnce", granted_without_its_message),
    ("AckedOnce", not_acked_after_a_seek),
    ("AckedOnce", granted_after_ack_and_no_seek_between),
    ("Honest", mischief_confirmed),
    ("Honest", mischief_stored),
    ("Honest", invented),
    ("Live", stuck),
    ("Live", late),
    ("Timely", stamped_ahead),
    ("Leased", granted_within_a_lease),
    ("Leased", granted_within_an_extension),
    ("Leased", refused_within_a_lease),
    ("Leased", not_extended_within_a_lease),
    ("HeldBack", granted_while_held_back),
    ("AckedOnce", told_twice),
    ("KeyOrder", a_key_overtaken),
    ("OrderedOnce", a_standby_overtakes),
    ("NotBeforeDue", granted_too_early),
]


def test_an_honest_history_breaks_no_promise() -> None:
    assert violations(honest()) == []


def test_a_seek_begins_anew() -> None:
    history = honest()
    sought(history)
    assert violations(history) == []
    history.seeks[0].done, history.grants = False, history.grants[:2]
    assert violations(history) == []


def test_what_went_past_retention_breaks_no_promise() -> None:
    history = honest()
    retained(history)
    assert violations(history) == []


@pytest.mark.parametrize(("arrived", "is_early"), [(999, True), (1_000, False), (1_066, False)])
def test_a_delay_is_over_in_the_millisecond_in_which_it_ends(arrived: int, is_early: bool) -> None:
    history = honest()
    granted_while_held_back(history)  # at 66 µs, for 1 ms
    history.grants[1].arrived = arrived
    assert ("HeldBack" in {name for name, _ in violations(history)}) is is_early


@pytest.mark.parametrize("change", [fenced, chunked])
def test_fences_and_chunks_break_no_promise(change: Callable[[History], None]) -> None:
    history = honest()
    change(history)
    assert violations(history) == []


def test_what_was_not_begun_beside_something_else_had_no_attempt() -> None:
    def forgotten(history: History) -> list[str]:
        return [text for _, text in violations(history) if "attempt" in text]

    history = honest()
    an_attempt_of_whoever_told_nothing_forgotten(history)
    history.grants.append(Grant(0, "c", 9, 5, 6, 1, 60, arrived=70, holder="a#1", tells=True))
    assert len(forgotten(history)) == 1  # the other was handed out later
    history.grants[1].arrived = 80
    assert forgotten(history) == []


def its_consumer_went(history: History) -> None:
    history.grants[0].gone = 90


def it_was_given_back(history: History) -> None:
    history.returns = [Return(0, "c", 11, 1, 2, 0, False, 66)]


def a_seek_came_between(history: History) -> None:
    history.seeks = [Seek(0, "c", 0, 61, 62)]


def a_clock_was_wrong(history: History) -> None:
    history.skewed = True


@pytest.mark.parametrize(
    "excuse", [its_consumer_went, it_was_given_back, a_seek_came_between, a_clock_was_wrong]
)
def test_what_ends_a_lease_breaks_no_promise(excuse: Callable[[History], None]) -> None:
    history = honest()
    granted_within_a_lease(history)
    excuse(history)
    assert "Leased" not in {name for name, _ in violations(history)}


def it_was_acked(history: History) -> None:
    history.acks[1].sent = history.extensions[0].stale


def its_lease_was_over(history: History) -> None:
    history.extensions[0].stale = 1_100


def all_of_it_was_given_back(history: History) -> None:
    history.returns = [Return(0, "c", 12, 1, 3, 0, False, 80)]


@pytest.mark.parametrize(
    "excuse", [it_was_acked, its_lease_was_over, all_of_it_was_given_back, a_clock_was_wrong]
)
def test_what_ends_a_grant_may_come_ahead_of_its_extension(
    excuse: Callable[[History], None],
) -> None:
    history = honest()
    not_extended_within_a_lease(history)
    excuse(history)
    assert "Leased" not in {name for name, _ in violations(history)}


@pytest.mark.parametrize(("promise", "plant"), PLANTED, ids=[p[1].__name__ for p in PLANTED])
def test_a_planted_violation_is_found(promise: str, plant: Callable[[History], None]) -> None:
    history = honest()
    plant(history)
    assert promise in {name for name, _ in violations(history)}


def test_every_checker_has_a_planted_violation() -> None:
    ours = {one.name for one in CHECKERS if type(one).__module__ not in ELSEWHERE}
    assert ours == {promise for promise, _ in PLANTED}


def test_what_clients_found_themselves_counts() -> None:
    history = honest()
    history.complaints.append(("Honest", "bad bytes"))
    assert violations(history) == [("Honest", "bad bytes")]
