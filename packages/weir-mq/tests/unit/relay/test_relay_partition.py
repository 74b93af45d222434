"""A relay's partition, step by step: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rigs.relay_logs import AB, CORE, GROUP, NOW, TANDEM, A, Log, batch, child, served
from weir.errors import BadBatch, Damaged
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.columns import References
from weir.model.ids import LIMIT_MAX
from weir.model.limits import HOLDS_MAX
from weir.relay import entries as e
from weir.relay import messages as m
from weir.relay import ports as p
from weir.relay.holds import HoldLimits, Holds
from weir.relay.lower import ANSWER_MS, AVOID_CORE_MS, AVOID_MS, Me
from weir.relay.marks import MarkRegisters
from weir.relay.partition import RelayPartition, Settings
from weir.relay.portion import Plan, missing_chunks, portion_of
from weir.relay.rows import Row, RowKind, StoredBatches
from weir.relay.state import RelayState
from weir.relay.upper import PULL_WAIT_MS, STALE_MS


def test_a_log_begins_where_the_upper_node_says() -> None:
    log = Log()
    upper, pull = log.pulled()
    assert (upper, pull.offset, pull.lineage) == (TANDEM, m.UNKNOWN, 0)
    log.begin(50)
    state = log.relay.state
    assert (state.start, state.end, state.lineage) == (50, 50, 1)
    assert [(one.tags, one.first) for one in state.filters] == [(A, 50)]
    assert (log.last.offset, log.last.tags, log.last.filter) == (50, ("a",), 1)


def test_what_was_checked_is_served_before_it_is_durable_here() -> None:
    log = Log()
    upper, _ = log.begin(50)
    log.do(p.PullCame(5, child(50, through=50)))
    data = batch(50, ["a", "a"], 9)
    log.answer(upper, log.last, [Row(RowKind.BATCH, 2, 9, len(data))], data)
    (read,) = log.of(p.ReadPortion)
    assert (read.plan.first, read.plan.until) == (50, 52)
    _, pull = log.pulled()
    assert pull.durable_through == 50, "it is not durable yet"
    portion = portion_of(read.plan, log, log.relay.state.chunks, StoredBatches())
    log.do(p.PortionRead(read.ticket, portion))
    (told,) = log.of(p.SendToChild)
    assert isinstance(told.message, m.Answer)
    assert (told.link, told.message.next, b"".join(map(bytes, told.data))) == (5, 52, data)
    assert log.relay.durable_end == 50
    log.do(p.Synced(len(log.entries)))
    assert log.relay.durable_end == 52
    assert log.relay.durable_through(NOW) == 50, "a child needs more"


def test_bad_bytes_are_asked_for_three_times_and_then_elsewhere() -> None:
    log = Log()
    upper, _ = log.begin(50)
    data = bytearray(batch(50, ["a", "a"], 9))
    data[-9] ^= 1
    pull = log.last
    for _ in range(2):
        log.answer(upper, pull, [Row(RowKind.BATCH, 2, 9, len(data))], bytes(data))
        assert not log.of(p.AppendEntry)
        asked, pull = log.pulled()
        assert asked == TANDEM
    log.answer(upper, pull, [Row(RowKind.BATCH, 2, 9, len(data))], bytes(data))
    (alarm,) = log.of(p.Alarm)
    assert alarm.kind == "relay-bad-bytes"
    asked, pull = log.pulled()
    assert asked == CORE
    good = batch(50, ["a", "a"], 9)
    log.answer(CORE, pull, [Row(RowKind.BATCH, 2, 9, len(good))], good, AVOID_MS)
    assert log.relay.state.end == 52
    assert log.pulled()[0] == TANDEM, "it is asked again after a while"


@pytest.mark.parametrize(
    "rows",
    [
        [Row(RowKind.BATCH, 3, 9, 0)],
        [Row(RowKind.BATCH, 2, 8, 0)],
        [Row(RowKind.SKIPPED, 1), Row(RowKind.BATCH, 2, 9, 0)],
    ],
    ids=["covers-more", "another-stamp", "another-offset"],
)
def test_rows_that_differ_from_their_batch_are_bad(rows: list[Row]) -> None:
    log = Log()
    upper, _ = log.begin(50)
    data = batch(50, ["a", "a"], 9)
    sized = [row._replace(size=len(data)) if row.stamp else row for row in rows]
    log.answer(upper, log.last, sized, data)
    assert not log.of(p.AppendEntry)


def test_an_answer_to_another_pull_is_left_alone() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.answer(CORE, pull, [Row(RowKind.SKIPPED, 2)])
    log.answer(upper, child(50, number=99), [Row(RowKind.SKIPPED, 2)])
    assert log.relay.state.end == 50
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 2)])
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 2)])
    assert log.relay.state.end == 52


def test_the_core_is_asked_again_soon_for_nobody_is_behind_it() -> None:
    log = Log()
    log.begin(50)

    def asked(after_ms: int) -> list[p.UpperNode]:
        log.do(p.Ticked(), after_ms)
        return [sent.upper for sent in log.of(p.SendToUpper) if isinstance(sent.message, m.Pull)]

    assert asked(ANSWER_MS) == [CORE], "the tandem was silent"
    assert asked(2 * ANSWER_MS - 1) == []
    assert asked(2 * ANSWER_MS) == []
    assert [alarm.kind for alarm in log.of(p.Alarm)] == ["relay-upper-silent"]
    assert asked(2 * ANSWER_MS + AVOID_CORE_MS - 1) == []
    assert asked(2 * ANSWER_MS + AVOID_CORE_MS) == [CORE]


def test_an_upper_node_that_is_silent_is_left_alone_for_a_while() -> None:
    log = Log()
    log.begin(50)
    log.do(p.Ticked(), ANSWER_MS - 1)
    assert not log.of(p.Alarm)
    log.do(p.Ticked(), ANSWER_MS)
    (alarm,) = log.of(p.Alarm)
    assert alarm.kind == "relay-upper-silent"
    sent = [one for one in log.of(p.SendToUpper) if isinstance(one.message, m.Pull)]
    assert [one.upper for one in sent] == [CORE]


def refused(log: Log, upper: p.UpperNode, refusal: m.AnyRefusal) -> p.UpperNode | None:
    log.do(p.RefusalCame(upper, refusal))
    sent = log.of(p.SendToUpper)
    return sent[0].upper if sent else None


def test_what_one_node_lacks_is_pulled_from_the_next() -> None:
    log = Log()
    _, pull = log.begin(50)
    n = pull.number
    for refusal in (
        m.FilterNotCovered(GROUP, n, 60), m.FilterNotCovered(GROUP, n, -1),
        m.OffsetOutOfRange(GROUP, n, 60), m.Overloaded(GROUP, n, 200), m.Behind(GROUP, n, 40),
        m.TopicGone(GROUP, n),
    ):  # fmt: skip
        log = Log()
        log.begin(50)
        assert refused(log, TANDEM, refusal) == CORE, refusal
        assert not log.of(p.AppendEntry)


def test_the_preferred_node_is_pulled_from_again_where_it_has_all() -> None:
    log = Log()
    log.begin(50)
    refused(log, TANDEM, m.FilterNotCovered(GROUP, log.last.number, 60))
    upper, pull = log.pulled()
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 9)])
    upper, pull = log.pulled()
    assert (upper, pull.offset) == (CORE, 59)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 1)])
    assert log.pulled()[0] == TANDEM


def test_only_what_the_core_has_lost_is_a_gap() -> None:
    log = Log((CORE,))
    log.begin(50)
    assert log.relay.log_start == -1, "nobody has said it"
    refused(log, CORE, m.OffsetOutOfRange(GROUP, log.last.number, 70, 65))
    assert log.relay.log_start == 65
    assert [alarm.kind for alarm in log.of(p.Alarm)] == ["relay-gap"]
    assert log.of(p.Moved)[0].gap == (50, 70)
    assert log.relay.state.gaps == [(50, 70)]
    _, pull = log.pulled()
    log.do(p.PullCame(5, child(60)))
    (sent,) = log.of(p.SendToChild)
    assert sent.message == m.OffsetOutOfRange(GROUP, 1, 70, 65)
    log.answer(CORE, pull, [Row(RowKind.SKIPPED, 2)])
    assert log.relay.log_start == 65, "a relay above may have heard less"
    told = served(log, child(70, 2))
    assert (told.next, told.log_start) == (72, 65), "retention has passed that, and 50 is kept"


def test_a_relay_that_started_just_now_does_not_say_where_the_log_of_the_core_begins() -> None:
    """Else what retention took counts as lost at the relays below that started, too."""
    log = Log()
    upper, pull = log.begin(50)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 2)], knows_log_start=False)
    assert log.relay.log_start == -1
    log.sync()
    told = served(log, child(50))
    assert (told.log_start, told.knows_log_start) == (50, False)
    log.answer(upper, log.last, [Row(RowKind.SKIPPED, 2)])
    assert log.relay.log_start == 0
    told = served(log, child(52, 2))
    assert (told.log_start, told.knows_log_start) == (50, True)


def test_what_retention_passes_while_it_is_read_is_out_of_range_at_once() -> None:
    log = Log((CORE,))
    _, pull = log.begin(50)
    log.answer(CORE, pull, [Row(RowKind.SKIPPED, 9)])
    log.do(p.PullCame(5, child(50)))
    (read,) = log.of(p.ReadPortion)
    log.relay.state.apply(e.StartMoved(55), 1)
    log.do(p.PortionRead(read.ticket, None))
    (sent,) = log.of(p.SendToChild)
    assert sent.message == m.OffsetOutOfRange(GROUP, 1, 55, 55)


def test_a_topic_is_gone_once_the_core_says_so() -> None:
    log = Log((CORE,))
    log.begin(50)
    log.do(p.RefusalCame(CORE, m.TopicGone(GROUP, log.last.number)))
    assert log.of(p.TopicEnded)


def test_a_fork_cuts_the_log_and_what_was_durable() -> None:
    log = Log()
    upper, pull = log.begin(50)
    mark = m.Mark(1, 30, 60)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 10)], marks=(mark,))
    _, pull = log.pulled()
    appended = len(log.entries)
    log.do(p.RefusalCame(upper, m.LineageEnded(GROUP, pull.number, 3, 55, ((2, 58), (3, 55)))))
    assert [moved.cut_at for moved in log.of(p.Moved)] == [50], "where its entry begins"
    _, pull = log.pulled()
    assert (pull.lineage, pull.offset) == (3, 50)
    log.do(p.Synced(appended))
    assert log.relay.durable_end == 50, "what was written before was cut off"
    log.do(p.PullCame(5, child(55, lineage=1)))
    (told,) = log.of(p.SendToChild)
    assert told.message == m.LineageEnded(GROUP, 1, 3, 55, ((2, 58), (3, 55)))
    log.do(p.PullCame(5, child(50, lineage=3)))
    log.do(p.Ticked(), PULL_WAIT_MS)
    (told,) = log.of(p.SendToChild)
    assert isinstance(told.message, m.Answer)
    assert told.message.marks == (), "the mark was of what was cut off"


def test_a_filter_widens_once_the_upper_node_says_from_where() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.do(p.InterestSet(AB))
    (asked,) = log.of(p.SendToUpper)
    assert isinstance(asked.message, m.AskFilter)
    assert asked.message.tags == ("a", "b")
    number = asked.message.number
    log.do(p.FilterToldFrom(asked.upper, m.FilterFrom(GROUP, number, m.UNKNOWN)))
    assert len(log.relay.state.filters) == 1
    log.do(p.FilterToldFrom(asked.upper, m.FilterFrom(GROUP, number, 58)))
    assert [(one.tags, one.first) for one in log.relay.state.filters] == [(A, 50), (AB, 58)]
    # What is under way may go past where the filter ends now.
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 10)])
    assert log.relay.state.end == 50
    upper, pull = log.pulled()
    assert (pull.tags, pull.until) == (("a",), 58)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 8)])
    _, pull = log.pulled()
    assert (pull.tags, pull.filter, pull.until) == (("a", "b"), 2, LIMIT_MAX)


def test_a_filter_does_not_narrow_under_a_child() -> None:
    log = Log(interest=AB)
    log.begin(50)
    log.do(p.PullCame(5, child(50, tags=("a", "b"))))
    log.do(p.InterestSet(A))
    assert len(log.relay.state.filters) == 1
    log.do(p.PullCame(5, child(50, number=2, tags=("a",))))
    assert [one.tags for one in log.relay.state.filters] == [AB, A]


def test_children_learn_of_a_filter_once_its_entry_is_durable() -> None:
    log = Log()
    log.begin(50)
    log.do(p.InterestSet(frozenset()))
    log.do(p.Synced(len(log.entries)))
    ask = p.FilterAsked(5, m.AskFilter(7, 40, 1, 3, 2, 8, ()))
    assert [one.message for one in _to_child(log, ask)] == [m.FilterFrom(GROUP, 8, 50)]
    log.do(p.InterestSet(A))
    (asked,) = log.of(p.SendToUpper)
    assert isinstance(asked.message, m.AskFilter)
    log.do(p.FilterToldFrom(asked.upper, m.FilterFrom(GROUP, asked.message.number, 50)))
    ask = p.FilterAsked(5, m.AskFilter(7, 40, 1, 3, 2, 9, ("a",)))
    assert [one.message for one in _to_child(log, ask)] == [m.FilterFrom(GROUP, 9, m.UNKNOWN)]
    log.do(p.Synced(len(log.entries)))
    assert [one.message for one in _to_child(log, ask)] == [m.FilterFrom(GROUP, 9, 50)]


def _to_child(log: Log, event: p.Event) -> list[p.SendToChild]:
    log.do(event)
    return log.of(p.SendToChild)


def test_what_children_need_is_not_reclaimed() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 10)])
    log.sync()
    log.do(p.PullCame(5, child(60, through=55)))
    log.do(p.RetentionSet(60))
    log.do(p.Ticked())
    assert log.relay.state.start == 55
    assert log.of(p.ReclaimBelow)
    log.do(p.HoldSaid(m.SayHold(7, 40, 1, 3, 2, 1, 58)))
    log.do(p.HoldSaid(m.SayHold(7, 41, 1, 3, 2, 1, 0)))  # it never pulled here
    log.do(p.HoldSaid(m.SayHold(7, 40, 1, 3, 2, 9, 60)))  # of another lineage
    log.do(p.Ticked())
    assert log.relay.state.start == 58


@pytest.mark.parametrize("how", ["a pull", "a hold"])
def test_no_child_says_that_it_has_more_than_there_is(how: str) -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 10)])
    log.sync()
    log.do(p.PullCame(5, child(60, through=LIMIT_MAX if how == "a pull" else 55)))
    if how == "a hold":
        log.do(p.HoldSaid(m.SayHold(7, 40, 1, 3, 2, 1, LIMIT_MAX)))
    log.answer(upper, log.last, [Row(RowKind.SKIPPED, 10)])
    log.sync()
    log.do(p.RetentionSet(70))
    log.do(p.Ticked())
    assert log.relay.state.start == 60, "what came since is kept"


def test_holds_survive_a_restart() -> None:
    log = Log()
    log.begin(50)
    log.do(p.PullCame(5, child(50, through=50)))
    state = RelayState()
    for entry in log.entries:
        record, data = e.decode_entry(entry)
        state.apply(record, len(data))
    settings = Settings(Me(7, 30, 1, GROUP))
    again = RelayPartition(settings, state, StoredBatches(), NOW)
    assert (40, 1) in again.upper.holds


def test_children_that_came_since_holds_were_stored_are_waited_for() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.answer(upper, pull, [Row(RowKind.SKIPPED, 10)])
    log.do(p.PullCame(6, child(60, through=60, brokerset=41)))
    state = RelayState()
    for entry in log.entries:
        record, data = e.decode_entry(entry)
        state.apply(record, len(data))
    again = RelayPartition(Settings(Me(7, 30, 1, GROUP)), state, StoredBatches(), NOW)
    again.handle(p.ChildrenSet(frozenset({(40, 1), (41, 1)})), NOW)
    assert (again.durable_end, again.durable_through(NOW)) == (60, 50)
    again.handle(p.PullCame(5, child(60, through=57)), NOW)
    assert again.durable_through(NOW) == 57


def test_a_log_of_which_only_the_beginning_was_durable_goes_on() -> None:
    state = RelayState()
    state.apply(e.Forked(1, 0, ()), 0)
    state.apply(e.StartMoved(50), 0)
    relay = RelayPartition(Settings(Me(7, 30, 1, GROUP)), state, StoredBatches(), NOW)
    relay.handle(p.UppersSet((CORE,)), NOW)
    effects = relay.handle(p.InterestSet(A), NOW)
    assert [(one.tags, one.first) for one in state.filters] == [(A, 50)]
    (sent,) = [one for one in effects if isinstance(one, p.SendToUpper)]
    assert isinstance(sent.message, m.Pull)
    assert (sent.message.offset, sent.message.tags) == (50, ("a",))


def test_the_least_hold_counts_until_it_expires() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    holds.await_children(frozenset())
    holds.say((40, 1), 70, A, 0)
    holds.say((40, 2), 60, A, 900)
    assert holds.lowest(900, 100) == 60
    assert holds.lowest(1_001, 100) == 60
    assert [child for child, *_ in holds.silent(1_001)] == [(40, 2)]
    assert holds.lowest(1_901, 100) == 100


def test_a_child_that_is_silent_for_long_makes_room_for_another() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    for node in range(HOLDS_MAX):
        assert holds.say((40, node + 1), 60, A, 0)
    assert not holds.say((41, 1), 60, A, 900)
    assert holds.say((41, 1), 60, A, 1_001)
    assert len(holds) == 1


def test_a_child_far_behind_is_told_of_once() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    holds.await_children(frozenset())
    holds.say((40, 1), 60, A, 0)
    asked: list[int] = []

    def affordable(offset: int) -> Callable[[int], int]:
        return lambda bytes_max: asked.append(bytes_max) or offset

    assert holds.keep(0, 100, affordable(50)) == (60, ())
    assert holds.keep(0, 100, affordable(80)) == (80, ((40, 1),))
    assert holds.keep(0, 100, affordable(90)) == (90, ())
    assert asked == [500] * 3


def test_each_child_is_held_for_within_its_own_limits() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    for node in range(1, 5):
        holds.say((40, node), 10 * node, A, 0)
    holds.limit({
        (40, 1): HoldLimits(1_000, 20), (40, 2): HoldLimits(5_000, 70), (40, 3): HoldLimits(50, 70)
    })  # fmt: skip
    assert [child for child, *_ in holds.silent(0)] == [(40, 1), (40, 2), (40, 3)]
    assert holds.keep(60, 100, lambda bytes_max: 100 - bytes_max) == (30, ((40, 1), (40, 2)))
    assert holds.keep(1_001, 100, lambda bytes_max: 0) == (20, ())
    assert holds.silent(1_001) == [((40, 2), 20, 1_001)]
    assert holds.keep(5_001, 100, lambda bytes_max: 0) == (100, ())


def test_what_is_kept_for_owners_below_that_did_not_speak_is_bounded() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    holds.begin(50, 0)
    assert holds.keep(0, 100, lambda _: 40) == (50, ())
    assert holds.keep(0, 100, lambda _: 70) == (70, ())


def test_all_is_kept_until_the_owners_below_have_spoken() -> None:
    holds = Holds(HoldLimits(1_000, 500))
    holds.begin(50, 0)
    holds.say((40, 1), 70, A, 0)
    assert holds.lowest(0, 100) == 50
    holds.await_children(frozenset({(40, 1), (40, 2)}))
    assert holds.lowest(0, 100) == 50
    holds.say((40, 2), 60, A, 0)
    assert holds.lowest(0, 100) == 60


def test_chunks_come_before_the_batch_that_closes_their_value() -> None:
    log = Log()
    upper, pull = log.begin(50)
    runs = ((5, 2), (9, 1))
    pieces = [bytes(encode([b"piece"], group=GROUP, chunk_at=5 * n)) for n in range(3)]
    closing = encode([b""], group=GROUP, tags=["a"], references=References(3 * 2**20, 1, runs))
    data = stamped(closing, 9, 50) + bytes(closing[HEADER_SIZE:])
    row = [Row(RowKind.BATCH, 1, 9, len(data))]
    log.answer(upper, pull, row, data)
    assert not log.of(p.AppendEntry), "its chunks are not here"
    _, pull = log.pulled()
    told = tuple(m.Chunk(at, len(one)) for at, one in zip((5, 6), pieces[:2], strict=True))
    log.answer(upper, pull, [], b"".join(pieces[:2]), chunks=told)
    _, pull = log.pulled()
    assert (pull.offset, pull.last_chunk) == (50, 6)
    log.answer(upper, pull, [], pieces[2], chunks=(m.Chunk(9, len(pieces[2])),))
    _, pull = log.pulled()
    log.answer(upper, pull, row, data)
    assert log.relay.state.end == 51
    # A child gets them in the same way.
    tags, places = A, log.relay.state.chunks
    indexes = log.relay.state.entries_from(50, 51, 10**6)
    first = portion_of(Plan(GROUP, 50, 51, tags, 10**6, 0, indexes), log, places, StoredBatches())
    assert [(one.core_index, one.size) for one in first.chunks] == [
        (at, len(one)) for at, one in zip((5, 6, 9), pieces, strict=True)
    ]
    assert (first.rows, first.next) == ((), 50)
    rest = portion_of(Plan(GROUP, 50, 51, tags, 10**6, 9, indexes), log, places, StoredBatches())
    assert (rest.chunks, rest.next) == ((), 51)
    assert missing_chunks(runs, 5) == [6, 9]


def test_a_portion_is_filtered_and_ends_with_the_credit() -> None:
    log = Log()
    upper, pull = log.begin(50)
    batches = [batch(50, ["a"], 9), batch(51, ["b"], 10), batch(52, ["a", "b"], 11)]
    rows = [
        Row(RowKind.BATCH, len(one) // 200 + 1, 9 + n, len(one)) for n, one in enumerate(batches)
    ]
    rows[0], rows[1] = rows[0]._replace(count=1), rows[1]._replace(count=1)
    rows[2] = rows[2]._replace(count=2)
    log.answer(upper, pull, rows, b"".join(batches))
    places, stored = log.relay.state.chunks, StoredBatches()
    indexes = log.relay.state.entries_from(50, 54, 10**6)
    found = portion_of(Plan(GROUP, 50, 54, A, 10**6, 0, indexes), log, places, stored)
    assert [(RowKind(row.kind), row.count, row.stamp) for row in found.rows] == [
        (RowKind.BATCH, 1, 9), (RowKind.SKIPPED, 1, 10), (RowKind.BATCH, 2, 11),
    ]  # fmt: skip
    small = portion_of(Plan(GROUP, 50, 54, A, 1, 0, indexes), log, places, stored)
    assert small.next == 52
    middle = portion_of(Plan(GROUP, 53, 54, A, 1, 0, indexes), log, places, stored)
    assert (middle.first, middle.next) == (53, 54)
    assert bytes(middle.data[0]) == batches[2], "readers take of it what the row covers"
    with pytest.raises(Damaged):
        portion_of(Plan(GROUP, 40, 54, A, 1, 0, indexes), log, places, stored)


def test_batches_are_looked_into() -> None:
    stored = StoredBatches()
    data = batch(50, ["a", None], 9)
    assert stored.check(data, GROUP)[:3] == (50, 52, 9)
    assert stored.select(data, frozenset(("",)), GROUP) == data
    assert stored.select(data, frozenset(("b",)), GROUP) is None
    large = batch(50, ["a"] + ["b"] * 99, 9)
    part = stored.select(large, A, GROUP)
    assert part is not None
    assert len(part) < len(large) / 4
    assert stored.check(part, GROUP)[:3] == (50, 150, 9), "a slice covers the whole batch"
    again = stored.select(part, AB, GROUP)
    assert again is not None
    assert bytes(again) == bytes(part)
    chunk = bytes(encode([b"piece"], group=GROUP, chunk_at=0))
    stored.check_chunk(chunk, GROUP)
    for wrong in (chunk, data + bytes(8)):
        with pytest.raises(BadBatch):
            stored.check(wrong, GROUP)
    with pytest.raises(BadBatch):
        stored.check_chunk(data, GROUP)
    with pytest.raises(BadBatch):
        stored.check(data, GROUP + 1)


def test_the_order_is_complete_up_to_the_lowest_mark_of_the_roster() -> None:
    registers = MarkRegisters()
    registers.say(1, m.Mark(2, 90, 5))
    assert registers.barrier() == (0, 0)
    registers.say(0, m.Mark(2, 80, 5))
    registers.say(0, m.Mark(2, 70, 5))
    assert registers.barrier() == (2, 80)
    registers.say(0, m.Mark(3, 100, 6))
    assert registers.barrier() == (0, 0), "partition 2 was not heard of"
    registers.say(2, m.Mark(3, 85, 0))
    assert registers.barrier() == (3, 85)
    registers.cut(1)
    assert registers.barrier() == (0, 0)


def test_a_relay_without_news_of_the_core_sends_its_children_elsewhere() -> None:
    """The core may be away, or its uppers form a circle: a child must not wait for it."""
    log = Log()
    upper, _ = log.begin(50)
    data = batch(50, ["a", "a"], 9)
    told = m.Answer(
        GROUP, log.last.number, 1, 50, 52, (Row(RowKind.BATCH, 2, 9, len(data)),), 0, 52,
        age_ms=STALE_MS - 100,
    )  # fmt: skip
    later = 2 * STALE_MS  # the start counts as news
    log.do(p.AnswerCame(upper, told, memoryview(data)), later)
    log.do(p.PullCame(5, child(52)), later + 100)
    assert not log.of(p.SendToChild), "the news are not too old yet"
    log.do(p.Ticked(), later + 101)
    (sent,) = log.of(p.SendToChild)
    assert sent.message == m.Overloaded(GROUP, 1, PULL_WAIT_MS)
    log.do(p.PullCame(6, child(50, 2)), later + 102)
    (read,) = log.of(p.ReadPortion)
    portion = portion_of(read.plan, log, log.relay.state.chunks, StoredBatches())
    log.do(p.PortionRead(read.ticket, portion), later + 103)
    (sent,) = log.of(p.SendToChild)
    assert isinstance(sent.message, m.Answer)
    assert (sent.message.next, sent.message.age_ms) == (52, STALE_MS + 3)


def test_a_relay_keeps_data_for_the_children_of_the_topology_within_their_caps() -> None:
    log = Log()
    upper, _ = log.begin(50)
    data = batch(50, ["a", "a"], 9)
    log.answer(upper, log.last, [Row(RowKind.BATCH, 2, 9, len(data))], data)
    log.sync()
    log.do(p.PullCame(5, child(52, through=51)))
    log.do(p.PullCame(6, child(52, through=50, brokerset=41)))
    known = {(40, 1): HoldLimits(1_000)}
    assert log.relay.durable_through(NOW) == 50
    log.do(p.ChildrenSet(frozenset(known), known))
    assert log.relay.durable_through(NOW) == 51
    assert log.relay.durable_through(NOW + 1_001) == 52
