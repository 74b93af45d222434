"""The roster of a topic goes from relay to relay with the messages that need it (ADR 0180)."""

from __future__ import annotations

from rigs.relay_logs import CORE, GROUP, NOW, Log, batch, child, served
from weir.model.limits import ROSTER_ENTRIES_MAX, ROSTER_ENTRIES_TOLD_MAX
from weir.relay import entries as e
from weir.relay import messages as m
from weir.relay import ports as p
from weir.relay.lower import BAD_ANSWERS_MAX, Me
from weir.relay.partition import RelayPartition, Settings
from weir.relay.rows import Row, RowKind, StoredBatches, roster_entry
from weir.relay.state import RelayState


def test_messages_go_on_with_the_roster_that_they_need_and_without_a_mark() -> None:
    """A relay that catches up has no mark; nor has one that was started anew."""
    log = Log()
    upper, pull = log.begin(50)
    joined = (roster_entry(0, 0, 3), roster_entry(1, 0, 4))
    data = batch(50, ["a", "a"], 9)
    log.answer(upper, pull, [Row(RowKind.BATCH, 2, 9, len(data))], data, roster=joined)
    assert log.relay.state.partitions == 4
    told = served(log, child(50))
    assert (told.next, told.roster, told.marks) == (52, joined, ())
    assert served(log, child(50, 2, roster=1)).roster == joined[1:]

    state = RelayState()
    for entry in log.entries:
        state.apply(e.decode_entry(entry)[0], len(entry))
    log.relay = RelayPartition(Settings(Me(7, 30, 1, GROUP)), state, StoredBatches(), NOW)
    assert served(log, child(50)).roster == joined


def test_who_waits_is_told_of_the_roster_at_once_and_gets_no_mark_before_it() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.do(p.PullCame(5, child(50, awaited=1)))
    mark, joined = m.Mark(3, 60, 50), (roster_entry(0, 0, 3),)
    log.answer(upper, pull, [], marks=(mark,), roster=joined)
    (told,) = log.of(p.SendToChild)
    assert isinstance(told.message, m.Answer)
    assert (told.message.roster, told.message.marks) == (joined, (mark,))
    assert [one.marks for one in log.of(p.Moved)] == [(mark,)]
    ahead = served(log, child(50, 2, roster=2, awaited=1))
    assert (ahead.roster, ahead.marks) == ((), (mark,)), "it has all of the roster, and more"


def test_a_roster_alone_is_news() -> None:
    log = Log()
    upper, pull = log.begin(50)
    log.do(p.PullCame(5, child(50)))
    log.answer(upper, pull, [], roster=(roster_entry(0, 0, 3),))
    assert log.of(p.Moved)
    (told,) = log.of(p.SendToChild)
    assert isinstance(told.message, m.Answer)
    assert told.message.roster == (roster_entry(0, 0, 3),)


def test_messages_come_behind_a_roster_that_needs_several_answers() -> None:
    log = Log()
    upper, pull = log.begin(50)
    many = ROSTER_ENTRIES_TOLD_MAX
    entries = [roster_entry(n, 0 if n < many + 2 else 51, n + 2) for n in range(2 * many + 1)]
    log.answer(upper, pull, [], roster=tuple(entries[:many]))
    log.sync()
    data = batch(50, ["a", "a"], 9)
    row = [Row(RowKind.BATCH, 2, 9, len(data))]
    log.answer(upper, log.last, row, data, roster=tuple(entries[many : 2 * many]))
    log.sync()
    log.answer(upper, log.last, [], roster=tuple(entries[2 * many :]))
    first = served(log, child(50))
    assert (first.next, len(first.roster)) == (50, many), "the message at 50 needs two more"
    second = served(log, child(50, 2, roster=many))
    assert (second.next, len(second.roster)) == (51, many), "that at 51 needs the last one"
    third = served(log, child(51, 3, roster=2 * many))
    assert (third.next, third.roster) == (52, (entries[-1],))


def test_entries_beyond_all_that_a_roster_can_have_are_bad_and_another_node_is_asked() -> None:
    log = Log()
    upper, pull = log.begin(50)
    most = ROSTER_ENTRIES_MAX - 1
    nearly_all = tuple(roster_entry(number, 0, 1) for number in range(most))
    log.relay.state.apply(e.Relayed(1, 50, 50, 1, NOW, (), nearly_all), 1)
    log.entries.append(b"")  # all of them, in one entry
    last = roster_entry(most, 0, 2)
    for _ in range(BAD_ANSWERS_MAX):
        log.answer(upper, pull, [], roster=(last, roster_entry(most + 1, 0, 3)))
        assert not log.of(p.AppendEntry)
        asked, pull = log.pulled()
    assert (asked, upper != CORE) == (CORE, True)
    log.answer(CORE, pull, [], roster=(last,))
    assert len(log.relay.state.roster) == ROSTER_ENTRIES_MAX
    assert log.relay.state.partitions == 2
