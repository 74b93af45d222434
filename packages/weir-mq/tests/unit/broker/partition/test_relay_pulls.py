"""What the core tells relays: all that is committed and decided, row for row, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rigs.access import be, close_access, give, rule
from rigs.broker_rig import SYSTEM
from rigs.shards import catalog_of
from rigs.topologies import row
from weir.broker.api import events as ev
from weir.broker.partition import relay_pulls
from weir.broker.partition.relay_pulls import portion_of
from weir.broker.records.registry import TopologyApplied
from weir.broker.replica import refill
from weir.broker.runtime.filtering import Slices
from weir.errors import (
    BadRequest,
    NotLeader,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    WrongSystem,
)
from weir.model.batch import Batch, split
from weir.model.ids import partition_of, place_of, topic_of
from weir.protocol.client import messages as m
from weir.relay.lower import Me
from weir.relay.messages import (
    Answer,
    AskFilter,
    Behind,
    FilterFrom,
    LineageEnded,
    OffsetOutOfRange,
    Overloaded,
    Pull,
    SayHold,
    decode_message,
    encode_message,
)
from weir.relay.partition import RelayPartition, Settings
from weir.relay.portion import Plan
from weir.relay.ports import (
    Alarm,
    AnswerCame,
    AppendEntry,
    FilterToldFrom,
    InterestSet,
    Moved,
    RefusalCame,
    SendToUpper,
    Ticked,
    UpperNode,
    UppersSet,
)
from weir.relay.rows import RowKind, StoredBatches, roster_entry
from weir.relay.state import RelayState
from weir.storage.format.frame import HEADER_SIZE, Kind
from weir.topology.sets import SetRow, TopicTags, Topology

CORE = UpperNode(0, 1, True)
TAGS: list[list[str | None]] = [
    ["a"] * 3,
    ["b"] * 4,
    ["a", "b", "b", None, "c", "b"],
    [None] * 2,
    ["c", "a"],
]


def pull(info: m.TopicInfo, offset: int = 0, **more: Any) -> Pull:
    group = info.addresses[0].group
    fields: dict[str, Any] = {
        "system": SYSTEM, "brokerset": 4, "node": 9, "topic": topic_of(group),
        "partition": partition_of(group), "number": 7, "lineage": 0, "offset": offset,
        "filter": 1, "tags": None, "credit": 1 << 20, "durable_through": 0, **more,
    }  # fmt: skip
    return Pull(**fields)


def request(info: m.TopicInfo, message: Any) -> m.AskRelay:
    return m.AskRelay(info.addresses[0], b"".join(encode_message(message)))


def told(rig: Any, info: m.TopicInfo, message: Any) -> tuple[Any, memoryview]:
    reply = rig.answer(1, request(info, message))
    assert isinstance(reply, m.RelayTold), reply
    return decode_message(b"".join(reply.message))


@pytest.fixture
def info(rig: Any, make_publisher: Any) -> Any:
    info = rig.topic(rig.connect())
    publisher = make_publisher(rig, info)
    for number, tags in enumerate(TAGS):
        values = [b"%d.%d" % (number, at) * 9 for at in range(len(tags))]
        publisher.ask(*values, tags=tags if any(tags) else None)
    return info


def rows(answer: Answer) -> list[tuple[int, int, int]]:
    return [(one.kind, one.count, one.size > 0) for one in answer.rows]


def test_a_pull_is_answered_with_all_that_is_committed(rig: Any, info: Any) -> None:
    answer, data = told(rig, info, pull(info))
    assert isinstance(answer, Answer)
    assert (answer.number, answer.first, answer.next, answer.head, answer.log_start) == (
        7, 0, 17, 17, 0,
    )  # fmt: skip
    assert rows(answer) == [(RowKind.BATCH, len(tags), True) for tags in TAGS]
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    assert bytes(data) == b"".join(fetched.batches)
    assert [one.stamp for one in answer.rows] == [
        batch.header.stamp for batch in split(data, info.addresses[0].group)
    ]
    (mark,) = answer.marks
    assert (mark.partitions, mark.through) == (1, 17)
    assert mark.stamp >= answer.rows[-1].stamp


def test_each_answer_has_the_roster_that_its_messages_need(rig: Any, info: Any) -> None:
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    for number in (1, 2):
        partition.state.join(number, 5)
    first, _ = told(rig, info, pull(info, 0, until=3))
    assert (first.next, first.marks) == (3, ()), "no mark would say it: the child catches up"
    assert first.roster == (roster_entry(0, 0, 2), roster_entry(1, 0, 3))
    second, _ = told(rig, info, pull(info, 3, roster=1))
    assert second.roster == (roster_entry(1, 0, 3),)
    partition.state.join(3, 6)
    third, _ = told(rig, info, pull(info, 3, roster=2))
    assert third.roster == (roster_entry(2, 0, 4),)


def test_a_pull_with_tags_is_told_what_is_skipped(rig: Any, info: Any) -> None:
    answer, data = told(rig, info, pull(info, 1, tags=("c",)))
    assert rows(answer) == [
        (RowKind.SKIPPED, 6, False), (RowKind.BATCH, 6, True), (RowKind.SKIPPED, 2, False),
        (RowKind.BATCH, 2, True),
    ]  # fmt: skip
    batches = list(split(data, info.addresses[0].group))
    assert batches[0].slice_of is not None, "it was sent whole"
    assert [one.header.first_offset for one in batches] == [7, 15]


def test_a_pull_gets_no_more_than_its_credit_but_one_batch(rig: Any, info: Any) -> None:
    first, _ = told(rig, info, pull(info, 0, credit=1))
    assert (first.first, first.next) == (0, 3)
    second, _ = told(rig, info, pull(info, 3, credit=1, until=5))
    assert (second.first, second.next) == (3, 5)
    assert rows(second) == [(RowKind.BATCH_MORE, 2, True)]


def test_an_answer_has_so_many_rows(rig: Any, info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_pulls, "ANSWER_ROWS_MAX", 2)
    answer, _ = told(rig, info, pull(info))
    assert (answer.next, len(answer.rows)) == (7, 2)


def test_offsets_that_are_void_are_told_as_such(rig: Any, info: Any) -> None:
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    partition.state.voids.add(3, 7)
    answer, _ = told(rig, info, pull(info, 0, until=13))
    assert [(kind, count) for kind, count, _ in rows(answer)] == [
        (RowKind.BATCH, 3), (RowKind.VOID, 4), (RowKind.BATCH, 6),
    ]  # fmt: skip
    skipped, _ = told(rig, info, pull(info, 0, until=13, tags=("x",)))
    assert [(kind, count) for kind, count, _ in rows(skipped)] == [
        (RowKind.SKIPPED, 3), (RowKind.VOID, 4), (RowKind.SKIPPED, 6),
    ]  # fmt: skip


def test_what_is_undecided_is_not_told(
    rig: Any, info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    monkeypatch.setattr(type(partition.state), "decided_offset", property(lambda _: 7))
    answer, _ = told(rig, info, pull(info))
    assert (answer.next, answer.head) == (7, 7)
    assert all(mark.through == 7 for mark in answer.marks)


def test_what_is_not_there_is_never_told_as_skipped(rig: Any, info: Any) -> None:
    """A range of which a batch is missing ends before it."""
    plan = Plan(info.addresses[0].group, 0, 17, None, 1 << 20, 0)
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    batches = [batch for data in fetched.batches for batch in split(data, plan.group)]
    pieces = [
        relay_pulls._Piece(one.header.first_offset, one.header.next_offset, 1, one)
        for one in batches
        if one.header.first_offset != 7
    ]
    portion, _ = portion_of(plan, pieces, Slices(), is_alike=False, is_cut=False)
    assert portion is not None
    assert (portion.next, len(portion.rows)) == (7, 2)
    assert portion_of(plan._replace(first=7), pieces[2:], Slices(), False, False) == (None, [])


def test_batches_of_one_stamp_say_that_more_follow(rig: Any, info: Any) -> None:
    plan = Plan(info.addresses[0].group, 0, 17, None, 1 << 20, 0)
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    (first, *_) = split(b"".join(fetched.batches), plan.group)
    pieces = [relay_pulls._Piece(at, at + 3, 1, first) for at in (0, 3)]
    for is_cut, last in ((True, RowKind.BATCH_MORE), (False, RowKind.BATCH)):
        made = [one._replace(batch=_At(first, one.first)) for one in pieces]
        portion, _ = portion_of(plan, made, Slices(), True, is_cut)
        assert portion is not None
        assert [one.kind for one in portion.rows] == [RowKind.BATCH_MORE, last]


class _At:
    """A batch, as if it began elsewhere."""

    def __init__(self, batch: Batch, first: int) -> None:
        self.view, self.header = batch.view, _Header(batch.header.stamp, first + 3)


class _Header:
    def __init__(self, stamp: int, behind: int) -> None:
        self.stamp, self.next_offset = stamp, behind


def test_a_pull_at_the_end_waits_for_what_comes(rig: Any, info: Any, make_publisher: Any) -> None:
    asked = rig.ask(1, request(info, pull(info, 17)))
    rig.settle()
    assert asked not in dict(rig.replies[1])
    make_publisher(rig, info).ask(b"new")
    answer, _ = decode_message(b"".join(dict(rig.replies[1])[asked].message))
    assert isinstance(answer, Answer)
    assert (answer.first, answer.next) == (17, 18)


def test_a_pull_at_the_end_is_answered_after_a_second(rig: Any, info: Any) -> None:
    asked = rig.ask(1, request(info, pull(info, 17)))
    for _ in range(18):
        rig.tick()
    assert asked not in dict(rig.replies[1])
    for _ in range(6):
        rig.tick()
    answer, _ = decode_message(b"".join(dict(rig.replies[1])[asked].message))
    assert isinstance(answer, Answer)
    assert (answer.first, answer.next, answer.rows) == (17, 17, ())
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    rig.tick()
    assert not partition.waiting


def test_of_the_pulls_of_a_node_the_last_one_is_answered(rig: Any, info: Any) -> None:
    first = rig.ask(1, request(info, pull(info, 17)))
    other = rig.ask(1, request(info, pull(info, 17, node=8)))
    rig.ask(1, request(info, pull(info, 17, number=8)))
    answers = dict(rig.replies[1])
    assert answers[first].code == Unavailable.code
    assert other not in answers


def test_nobody_is_answered_who_is_gone(rig: Any, info: Any, make_publisher: Any) -> None:
    rig.connect(2)
    rig.ask(2, request(info, pull(info, 17)))
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    assert partition.waiting
    rig.handle(ev.Closed(2))
    assert not partition.leading.relays.waiting
    make_publisher(rig, info).ask(b"new")
    assert not rig.replies[2]


def test_refusals_of_a_pull(rig: Any, info: Any) -> None:
    assert told(rig, info, pull(info, 18))[0] == Behind(info.addresses[0].group, 7, 17)
    assert told(rig, info, pull(info, 1, lineage=3))[0] == Behind(info.addresses[0].group, 7, 17)
    begin = told(rig, info, pull(info, -1))[0]
    assert begin == OffsetOutOfRange(info.addresses[0].group, 7, 0)
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    partition.state.log_start = 5
    past = told(rig, info, pull(info, 4))[0]
    assert past == OffsetOutOfRange(info.addresses[0].group, 7, 5, 5)


def test_a_question_about_a_filter_and_a_hold_are_answered(rig: Any, info: Any) -> None:
    group = info.addresses[0].group
    ask = AskFilter(SYSTEM, 4, 9, topic_of(group), partition_of(group), 11, ("a",))
    assert told(rig, info, ask)[0] == FilterFrom(group, 11, 0)
    hold = SayHold(SYSTEM, 4, 9, topic_of(group), partition_of(group), 0, 5)
    assert rig.answer(1, request(info, hold)) == m.RelayTold(info.addresses[0])


@pytest.mark.parametrize("data", [b"", b"x" * 40])
def test_bytes_that_are_no_message_are_refused(rig: Any, info: Any, data: bytes) -> None:
    refused = rig.answer(1, m.AskRelay(info.addresses[0], data))
    assert refused.code == BadRequest.code


def test_messages_that_are_told_and_those_of_other_groups_are_refused(rig: Any, info: Any) -> None:
    refused = rig.answer(1, request(info, Overloaded(info.addresses[0].group, 1, 5)))
    assert (refused.code, "upper nodes send it to relays" in refused.message) == (
        BadRequest.code, True,
    )  # fmt: skip
    refused = rig.answer(1, request(info, pull(info, partition=3)))
    assert (refused.code, "was sent to group" in refused.message) == (BadRequest.code, True)


def test_relays_of_another_system_are_refused(rig: Any, info: Any) -> None:
    refused = rig.answer(1, request(info, pull(info, system=SYSTEM + 1)))
    assert (refused.code, refused.detail) == (WrongSystem.code, SYSTEM)


def test_the_topology_bounds_what_a_set_may_pull(rig: Any, info: Any) -> None:
    access = SetRow(
        4, "shenzhen", "access", 1, nodes=row(8).nodes,
        tags=(TopicTags("default/t", ("a", "b")),), upper=(0,),
    )  # fmt: skip
    catalog_of(rig.shard).topology.apply(TopologyApplied(1, Topology(0, (row(0), access))))

    def code(message: Any) -> int:
        reply = rig.answer(1, request(info, message))
        return 0 if isinstance(reply, m.RelayTold) else reply.code

    assert code(pull(info, tags=("a",))) == 0
    assert code(pull(info, -1)) == 0  # it names no tags yet, and gets no message
    assert code(pull(info)) == Unauthorized.code
    assert code(pull(info, tags=("a", "c"))) == Unauthorized.code
    assert code(pull(info, -1, node=7)) == Unauthorized.code
    assert code(pull(info, -1, brokerset=5)) == Unauthorized.code
    assert code(pull(info, -1, brokerset=0, node=1)) == Unauthorized.code
    group = info.addresses[0].group
    ask = AskFilter(SYSTEM, 4, 9, topic_of(group), partition_of(group), 11, ("c",))
    assert code(ask) == Unauthorized.code
    other = rig.topic(1, "other")
    reply = rig.answer(1, request(other, pull(other, -1)))
    assert (reply.code, "gives no message of default/other" in reply.message) == (
        Unauthorized.code, True,
    )  # fmt: skip


def test_a_pull_needs_the_right_to_read_the_topic(rig: Any, info: Any) -> None:
    close_access([rig.shard])
    access = catalog_of(rig.shard).access
    for verb, code in (("consume", UnknownTopic.code), ("read", 0)):
        be(rig.shard, 1, give(access, verb, rule(verb, "topic", "default/t")))
        reply = rig.answer(1, request(info, pull(info)))
        got = 0 if isinstance(reply, m.RelayTold) else reply.code
        assert got in ((code, Unauthorized.code) if code else (0,)), reply


NEAR = row(5, "access", (1,), 1)
#: A set of node 50 that holds what has tag a of a topic; and one of all.
SETS = Topology(1, (
    row(1), msgspec.structs.replace(NEAR, tags=(TopicTags("default/t", ("a",)),)),
    row(6, "access", (1,), 1),
))  # fmt: skip


def allowed(rig: Any, session: int, asked: m.Request) -> bool:
    """Return whether a request is answered, and not refused for want of a right."""
    reply = rig.answer(session, asked)
    assert not isinstance(reply, m.Refusal) or reply.code in (Unauthorized.code, UnknownTopic.code)
    return not isinstance(reply, m.Refusal)


@pytest.mark.parametrize("passed", [False, True])
def test_a_relay_pulls_what_its_set_has_as_who_may_pull_for_it(
    rig: Any, info: Any, passed: bool
) -> None:
    catalog = catalog_of(rig.shard)
    catalog.topology.apply(TopologyApplied(1, SETS))
    close_access([rig.shard])
    mine = give(catalog.access, "near", rule("pull", "set", "set5"))
    reads = give(catalog.access, "ann", rule("read", "topic", "default/t"))
    if passed:
        rig.replies[2] = rig.replies[3] = []
        for session, principal in ((2, mine), (3, reads)):
            rig.handle(ev.Opened(session, principal, place_of(2, 1)))
    else:
        for session, principal in ((2, mine), (3, reads)):
            rig.connect(session, hello=False)
            be(rig.shard, session, principal)
            assert isinstance(rig.answer(session, m.Hello("test")), m.Welcome)

    def asks(session: int, **more: Any) -> bool:
        of = {"brokerset": 5, "node": SETS.sets[1].nodes[0].number, "tags": ("a",), **more}
        return allowed(rig, session, request(info, pull(info, **of)))

    assert asks(2)
    assert not asks(2, tags=("b",)), "its set has no such tag"
    assert not asks(2, tags=None)
    assert not asks(2, brokerset=6, node=SETS.sets[2].nodes[0].number), "that is another set"
    assert not asks(2, brokerset=1, node=SETS.sets[0].nodes[0].number), "the core pulls nothing"
    assert not allowed(rig, 2, m.Fetch(info.addresses[0], 0, 1 << 20))
    assert not asks(3), "who may read is no relay of the topology"
    assert allowed(rig, 3, m.Fetch(info.addresses[0], 0, 1 << 20))
    named = msgspec.structs.replace(SETS.sets[1], name="other")
    catalog.topology.apply(TopologyApplied(2, Topology(1, (row(1), named))))
    assert not asks(2), "its set has another name"


def test_the_right_to_pull_as_a_set_gives_no_topic_of_the_brokers(rig: Any, info: Any) -> None:
    """Neither what lies there, nor what is kept of it: that needs the right to read as well."""
    audit = rig.topic(1, "_weir/audit")
    catalog = catalog_of(rig.shard)
    named = msgspec.structs.replace(SETS.sets[1], tags=(TopicTags("_weir/audit"),))
    catalog.topology.apply(TopologyApplied(1, Topology(1, (row(1), named, SETS.sets[2]))))
    close_access([rig.shard])
    pulls = [rule("pull", "set", name) for name in ("set5", "set6")]
    reads, every = (rule("read", "topic", "_weir/audit"), rule("read", "topic", "", True))
    users = {"near": pulls, "far": [*pulls, every], "auditor": [reads], "both": [*pulls, reads]}
    for session, (user, rules) in enumerate(users.items(), start=2):
        rig.connect(session, hello=False)
        be(rig.shard, session, give(catalog.access, user, *rules))
        assert isinstance(rig.answer(session, m.Hello("test")), m.Welcome)
    group = audit.addresses[0].group
    for one in named, SETS.sets[2]:
        me = SYSTEM, one.id, one.nodes[0].number, topic_of(group), partition_of(group)
        questions = (
            pull(audit, -1, brokerset=one.id, node=me[2]),
            pull(audit, brokerset=one.id, node=me[2]),
            AskFilter(*me, 0, None),
            SayHold(*me, 0, 0),
        )
        for question in questions:
            may = [allowed(rig, at, request(audit, question)) for at in (2, 3, 4, 5)]
            # Set 6 has all topics, and so none of the brokers.
            assert may == [False, False, False, one is named], (one.name, question)
    other = pull(info, brokerset=6, node=SETS.sets[2].nodes[0].number)
    assert allowed(rig, 2, request(info, other))


def test_who_waits_is_refused_when_another_node_leads(rig: Any, info: Any) -> None:
    asked = rig.ask(1, request(info, pull(info, 17)))
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    partition.lose(NotLeader("another leads", 2), cut_off=False)
    rig.tick()
    assert dict(rig.replies[1])[asked].code == NotLeader.code
    assert not partition.fetches.waiting


class Relay:
    """A relay's partition that pulls from a shard, and keeps what it was told."""

    def __init__(self, rig: Any, info: m.TopicInfo, tags: frozenset[str] | None) -> None:
        self.rig, self.info = rig, info
        group = info.addresses[0].group
        self.machine = RelayPartition(
            Settings(Me(SYSTEM, 4, 9, group)), RelayState(), StoredBatches(), rig.time.wall_ms()
        )
        self.data: list[bytes] = []
        self.alarms: list[Alarm] = []
        self.do(self.machine.handle(UppersSet((CORE,)), rig.time.wall_ms()))
        self.do(self.machine.handle(InterestSet(tags), rig.time.wall_ms()))

    def do(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case SendToUpper(_, message):
                    self.asked = self.rig.ask(1, request(self.info, message))
                case AppendEntry(_, _, data):
                    self.data += map(bytes, data)
                case Alarm():
                    self.alarms.append(effect)
                case Moved():
                    pass
                case _:
                    raise AssertionError(effect)

    def run(self, turns: int = 40) -> None:
        for _ in range(turns):
            self.rig.settle()
            reply = dict(self.rig.replies[1]).get(self.asked)
            now = self.rig.time.wall_ms()
            if reply is None:
                self.do(self.machine.handle(Ticked(), now))
                continue
            assert isinstance(reply, m.RelayTold), reply
            del self.rig.replies[1][:]
            message, data = decode_message(b"".join(reply.message))
            if isinstance(message, Answer):
                event: Any = AnswerCame(CORE, message, data)
            elif isinstance(message, FilterFrom):
                event = FilterToldFrom(CORE, message)
            else:
                event = RefusalCame(CORE, message)
            self.do(self.machine.handle(event, now))


@pytest.mark.parametrize("tags", [None, frozenset({"c"}), frozenset({""}), frozenset({"x"})])
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_relay_takes_what_the_core_tells_it(
    make_rig: Any, make_publisher: Any, tags: frozenset[str] | None, cache: int
) -> None:
    rig = make_rig(cache=cache)
    info = rig.topic(rig.connect())
    publisher = make_publisher(rig, info)
    for number, some in enumerate(TAGS):
        values = [b"%d" % number] * len(some)
        publisher.ask(*values, tags=some if any(some) else None)
    relay = Relay(rig, info, tags)
    relay.run()
    assert (relay.machine.state.begun, relay.machine.state.end) == (True, 17)
    assert not relay.alarms
    found = [
        one.offset
        for data in relay.data
        for batch in split(data, info.addresses[0].group)
        for one in batch.messages()
        if tags is None or (one.tag or "") in tags
    ]
    wanted = [tag or "" for some in TAGS for tag in some]
    assert found == [at for at, tag in enumerate(wanted) if tags is None or tag in tags]


def test_a_relay_takes_large_values_and_their_chunks(make_rig: Any, make_publisher: Any) -> None:
    rig = make_rig()
    info = rig.topic(rig.connect())
    publisher = make_publisher(rig, info)
    publisher.ask(b"before")
    indices = publisher.pieces(b"a" * 500, b"b" * 500)
    publisher.close(1_000, *indices)
    publisher.ask(b"behind")
    relay = Relay(rig, info, None)
    relay.run()
    state = relay.machine.state
    assert state.end == 3
    assert [state.chunks.find(index) > 0 for index in indices] == [True, True]
    assert not relay.alarms


def rot(rig: Any, info: m.TopicInfo, *indexes: int) -> None:
    """Damage entries where they lie on the disk, or mend them again."""
    log = rig.shard.writers[0].log
    for index in indexes:
        stored = log.reader.stored(info.addresses[0].group, index)
        segment = log.segments.find(stored.place)
        rig.disk.flip(segment.name, stored.place - segment.base + HEADER_SIZE + stored.length // 2)


def entries_of(rig: Any, info: m.TopicInfo) -> list[int]:
    """Return the Raft indexes of the entries with messages."""
    reader, group = rig.shard.writers[0].log.reader, info.addresses[0].group
    found = ((index, reader.stored(group, index)) for index in range(1, 50))
    return [index for index, stored in found if stored and stored.kind is Kind.BATCHES]


@pytest.fixture
def cold(make_rig: Any, make_publisher: Any) -> tuple[Any, m.TopicInfo]:
    """A node without a cache, and a topic whose entries hold the messages of `TAGS`."""
    rig = make_rig(cache=0)
    info = rig.topic(rig.connect())
    publisher = make_publisher(rig, info)
    for number, tags in enumerate(TAGS):
        publisher.ask(*[b"%d" % number] * len(tags), tags=tags if any(tags) else None)
    return rig, info


@pytest.mark.parametrize(
    ("damaged", "gaps"),
    [
        ((0,), [(0, 3)]),
        ((1, 2), [(3, 13)]),
        ((1, 3), [(3, 7), (13, 15)]),
        ((4,), [(15, 17)]),
        ((0, 1, 2, 3, 4), [(0, 17)]),
    ],
)
@pytest.mark.parametrize("at_once", [1, 64])
def test_what_is_damaged_in_the_core_is_a_gap_and_all_else_comes(
    cold: Any, monkeypatch: pytest.MonkeyPatch, damaged: Sequence[int],
    gaps: list[tuple[int, int]], at_once: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(relay_pulls, "DAMAGED_ENTRIES_MAX", at_once)
    rig, info = cold
    entries = entries_of(rig, info)
    rot(rig, info, *(entries[at] for at in damaged))
    relay = Relay(rig, info, None)
    relay.run()
    assert (relay.machine.state.end, relay.machine.state.gaps) == (17, gaps)
    assert {one.kind for one in relay.alarms} == {"relay-gap"}
    found = [
        one.offset
        for data in relay.data
        for batch in split(data, info.addresses[0].group)
        for one in batch.messages()
    ]
    lost = {at for first, behind in gaps for at in range(first, behind)}
    assert found == [at for at in range(17) if at not in lost]


def test_what_tags_exclude_before_the_damage_is_told_first(cold: Any) -> None:
    rig, info = cold
    entries = entries_of(rig, info)
    rot(rig, info, entries[2])
    skipped, _ = told(rig, info, pull(info, 0, tags=("c",)))
    assert (skipped.next, rows(skipped)) == (7, [(RowKind.SKIPPED, 7, False)])
    lost = told(rig, info, pull(info, 7, tags=("c",)))[0]
    assert lost == OffsetOutOfRange(info.addresses[0].group, 7, 13)


def test_damage_is_told_up_to_where_the_pull_ends(cold: Any) -> None:
    rig, info = cold
    rot(rig, info, *entries_of(rig, info)[1:3])
    lost = told(rig, info, pull(info, 4, until=9))[0]
    assert lost == OffsetOutOfRange(info.addresses[0].group, 7, 9)


def test_what_was_mended_meanwhile_is_no_gap(cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, info = cold
    (index,) = entries_of(rig, info)[1:2]
    rot(rig, info, index)
    meet = relay_pulls.RelayPulls.__dict__["_meet_damage"]

    def mended(pulls: Any, *rest: Any) -> None:
        rot(rig, info, index)
        meet(pulls, *rest)

    monkeypatch.setattr(relay_pulls.RelayPulls, "_meet_damage", mended)
    assert isinstance(told(rig, info, pull(info, 3))[0], Overloaded)
    assert told(rig, info, pull(info, 3))[0].next == 17


def test_damage_that_comes_from_other_replicas_is_waited_for(
    cold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, info = cold
    rot(rig, info, entries_of(rig, info)[1])
    monkeypatch.setattr(refill.Refill, "met_rot", lambda *_: True)
    assert isinstance(told(rig, info, pull(info, 3))[0], Overloaded)


def test_a_value_of_which_a_chunk_is_damaged_is_a_gap(make_rig: Any, make_publisher: Any) -> None:
    rig = make_rig(cache=0)
    info = rig.topic(rig.connect())
    publisher = make_publisher(rig, info)
    publisher.ask(b"before")
    indexes = publisher.pieces(b"a" * 500, b"b" * 500)
    publisher.close(1_000, *indexes)
    publisher.ask(b"behind")
    rot(rig, info, indexes[0])
    relay = Relay(rig, info, None)
    relay.run()
    assert (relay.machine.state.end, relay.machine.state.gaps) == (3, [(1, 2)])


def test_a_relay_is_told_where_a_lineage_took_over(rig: Any, info: Any) -> None:
    """A lone node that is forced goes on as it is, in the next lineage."""
    group = rig.shard.topics.partition(info.addresses[0].group)[1].group
    assert told(rig, info, pull(info))[0].lineage == 0
    group.force(3, (group.voter,))
    rig.tick()
    rig.settle()
    assert group.node.lineages.current == 3
    refused = told(rig, info, pull(info))[0]
    assert refused == LineageEnded(group.id, 7, 3, 17, ((3, 17),))
    answer = told(rig, info, pull(info, lineage=3))[0]
    assert isinstance(answer, Answer)
    assert (answer.lineage, answer.next) == (3, 17)
    rig.boot()
    rig.settle()
    rig.connect()
    assert told(rig, info, pull(info))[0] == refused


def test_a_reader_beyond_a_lineage_is_told_where_the_next_one_began(
    rig: Any, info: Any, make_publisher: Any
) -> None:
    group = rig.shard.topics.partition(info.addresses[0].group)[1].group
    group.force(1, (group.voter,))
    rig.tick()
    rig.settle()
    make_publisher(rig, info).ask(b"of lineage 1")
    refused = rig.answer(1, m.Fetch(info.addresses[0], 20, 1 << 20))
    assert "Lineage 1 began at offset 17, when a core set was promoted" in refused.message
    assert refused.detail == 17, "not where the partition ends: it has not read what begins there"
