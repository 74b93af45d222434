"""A replica whose leader tells it what it cannot apply stops; its node, and all else, go on."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import weir_raft as raft
from rigs.shards import refill_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.reassignment import behind, standing_of
from weir.broker.records import entries
from weir.broker.records import partition as part
from weir.broker.records import registry as reg
from weir.broker.records.audit import AuditProducerOpened
from weir.broker.records.entries import Payload
from weir.broker.records.snapshots import pack as packed
from weir.broker.replica.frames import pack
from weir.broker.replica.refill import Refill
from weir.broker.state.clusters import ClusterState
from weir.errors import BadRequest, Damaged, NotLeader, Unavailable
from weir.model.batch import HEADER_SIZE, renumbered, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins
from weir.model.ids import REGISTRY_GROUP, incarnation_of, node_of, place_of
from weir.model.limits import FORMAT_LEVEL, MIB
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.protocol.client.nodes import ListNodes
from weir.protocol.client.topology import ForceRegistry
from weir.protocol.link import LinkStream
from weir.storage.format.frame import HEADER_SIZE as ENTRY_HEADER_SIZE
from weir.storage.format.frame import Kind
from weir_raft import messages as r

GRANT = part.MessagesGranted("evil", 7, 0, 1, 5, 5)
TOPICS = (
    reg.TopicCreated("n", "nothing", 0, "partition", 1),
    reg.TopicAltered(2, 5, SettingsChange()),
)


@pytest.fixture(autouse=True)
def _evil(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grant of this cluster can be applied, whoever wrote it."""
    grant = ClusterState.grant

    def contradicted(self: ClusterState, fence: int, record: part.MessagesGranted) -> Any:
        if record.cluster == "evil":
            raise KeyError("a grant of what nobody has")
        return grant(self, fence, record)

    monkeypatch.setattr(ClusterState, "grant", contradicted)


def told(node: Any, group: int, message: r.Message) -> list[str]:
    """Give a node a message as another one's; return why it ended the link, if it did."""
    frames = LinkStream().receive(b"".join(pack(group, message)))
    place = place_of(node_of(message.sender), 0)
    effects = node.shard.step(ev.PeerSent(place, frames)) + node.shard.run_deferred()
    node.do([one for one in effects if not isinstance(one, ef.EndLink)])
    return [one.reason for one in effects if isinstance(one, ef.EndLink)]


def lead(node: Any, number: int, *records: Any, kind: Kind = Kind.CONTROL) -> list[str]:
    """Append records to a group of a node as its leader of a higher term, and commit them."""
    group = node.group(number)
    sender = next(one for one in group.node.configuration.members if one != group.voter)
    last, term = group.node.log.last_index, group.node.term + 1
    appended = []
    for index, record in enumerate(records, last + 1):
        data = record if isinstance(record, bytes) else entries.encode_control(record)
        payload = Payload(kind, (data,), len(data))
        appended.append(raft.Entry(index, term, raft.EntryKind.NORMAL, payload, payload.size))
    prev, behind = group.node.log.term(last), last + len(appended)
    append = r.Append(group.voter, sender, term, last, prev, tuple(appended), behind)
    ended = told(node, number, append)
    while node.jobs:  # what is committed is applied once it is durable here
        node.step()
    return ended


def alone(trio: Any, node: Any) -> None:
    """Let nobody else be heard of by a node, and wait until it leads nothing."""
    trio.isolate(node.id)
    trio.run(3_000)


def led_anew(trio: Any, group: int, node: Any) -> None:
    """Let another node than `node` lead a group in a later term, as after any election."""
    leader = trio.leader(group)
    other = next(one for one in trio.live() if one not in (leader, node))
    leader.group(group).node.transfer_leadership(other.group(group).voter)
    leader.group(group).process_ready()
    trio.until(lambda: other.group(group).leads, "it was not handed over")


def settled(trio: Any) -> tuple[Any, Any, int]:
    info, grant = trio.topic("t", partitions=2), trio.producer()
    group = info.addresses[0].group
    trio.same_everywhere(group)
    return info, grant, group


def test_a_record_that_cannot_be_applied_stops_the_replica_alone(trio: Any, produce: Any) -> None:
    info, grant, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    assert lead(node, group, GRANT) == []
    (halt,) = node.halts
    assert (halt.group, type(halt.error)) == (group, KeyError)
    assert "a leader broke the rules, or this release of weir has a bug" in halt.reason
    assert node.shard.counts.replicas_halted == 1
    here = node.group(group)
    assert isinstance(here.damage, Damaged)
    with pytest.raises(Unavailable, match="has stopped"):
        here.propose(Payload(Kind.CONTROL, (b"",), 0))
    refused: list[Any] = []
    here.read(SimpleNamespace(readable=refused.append))
    assert isinstance(refused[0], Unavailable)
    # It says nothing to anybody any more, whatever it is told.
    term = here.node.term
    vote = r.VoteRequest(here.voter, 2 << 16, term + 5, 1 << 20, term + 4, False, True)
    assert told(node, group, vote) == []
    assert here.node.term == term
    # The other partition of the topic goes on, and what is left of the set.
    assert node.group(info.addresses[1].group).damage is None
    trio.heal()
    trio.run(500)
    for sequence in range(3):
        request = produce(info, grant, sequence, b"v%d" % sequence, partition=1)
        assert trio.told(request, info.addresses[1].group).offset == sequence


def test_a_replica_that_stopped_comes_back_whole_from_the_others(trio: Any, produce: Any) -> None:
    info, grant, group = settled(trio)
    node = trio[1]
    before = trio.told(produce(info, grant, 0, b"before"), group)
    assert before.offset == 0
    alone(trio, node)
    lead(node, group, GRANT)
    old = node.group(group).voter
    trio.heal()
    led_anew(trio, group, node)

    def is_another() -> bool:
        here = node.group(group)
        return here is not None and here.damage is None and here.voter != old

    trio.until(is_another, "it never came back")
    assert incarnation_of(node.group(group).voter) == 1
    assert trio.told(produce(info, grant, 1, b"after"), group).offset == 1
    assert trio.same_everywhere(group) == [b"before", b"after"]
    assert len(node.halts) == 1


def test_a_leader_of_an_earlier_term_does_not_let_what_stopped_be_given_up(trio: Any) -> None:
    """It does not know what this one acknowledged to a later one, and may be cut off from that."""
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    lead(node, group, GRANT)
    here = node.group(group)
    last, term = here.node.log.last_index, here.node.term
    for said, is_believed in ((term - 1, False), (term, True)):
        append = r.Append(here.voter, 2 << 16, said, last, said, (), last, True)
        assert told(node, group, append) == []
        assert here.rejoin.others_go_on == is_believed


def test_a_replica_that_stopped_stops_again_at_the_next_start(trio: Any) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    lead(node, group, GRANT)
    trio.run(500)
    node.kill()
    node.boot()
    # Nobody says yet that it is committed: it is as it was before.
    trio.heal()
    here = trio.until(lambda: node.group(group), "it was never opened")
    trio.isolate(node.id)
    assert here.damage is None
    heartbeat = r.Heartbeat(here.voter, 2 << 16, here.node.term + 1, here.node.log.last_index, 0)
    told(node, group, heartbeat)
    trio.settle()
    assert [one.group for one in node.halts] == [group]


def saves(node: Any) -> bool:
    """Ask for a checkpoint; return whether one is being saved then."""
    node.shard.writers[0].checkpoints.save()
    effects = node.shard.run_deferred()
    node.do(effects)
    return any(isinstance(one, ef.SaveCheckpoint) for one in effects)


def test_no_checkpoint_holds_the_state_of_a_replica_that_stopped(trio: Any, produce: Any) -> None:
    info, grant, group = settled(trio)
    trio.told(produce(info, grant, 0, b"v"), group)
    trio.same_everywhere(group)
    node = trio[1]
    assert saves(node)
    trio.settle()
    alone(trio, node)
    lead(node, group, GRANT)
    trio.settle()
    assert node.group(group).lacks_state
    assert not saves(node)
    trio.heal()
    led_anew(trio, group, node)
    trio.until(lambda: not node.group(group).lacks_state, "it never came back")
    assert saves(node)
    assert trio.same_everywhere(group) == [b"v"]


def test_a_node_goes_on_without_the_registrys_replica(trio: Any, produce: Any) -> None:
    info, grant, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    assert lead(node, REGISTRY_GROUP, *TOPICS) == []
    assert [one.group for one in node.halts] == [REGISTRY_GROUP]
    assert "at the next start of this node" in node.halts[0].reason
    trio.heal()
    trio.run(1_000)
    assert node.shard.registry.group is None
    assert node.group(group).damage is None
    for sequence in range(3):
        assert trio.told(produce(info, grant, sequence, b"x"), group).offset == sequence
    assert trio.same_everywhere(group) == [b"x"] * 3
    assert [row.id for row in trio.told(ListNodes(), 0).nodes] == [1, 2, 3]


def test_who_promotes_a_set_is_not_to_wait_for_a_registrys_replica_that_stopped(
    trio: Any, produce: Any
) -> None:
    """Only a start of the node brings it back: to ask again for 5 s was in vain."""
    settled(trio)
    node = trio[1]
    alone(trio, node)
    voter = node.group(REGISTRY_GROUP).voter
    lead(node, REGISTRY_GROUP, *TOPICS)
    trio.heal()
    trio.run(1_000)
    asked = node.ask(ForceRegistry(0, 0, 1, [voter]))
    found = trio.until(lambda: node.reply_to(asked))
    assert found.code == BadRequest.code, found
    assert "has no whole copy of the registry" in found.message


def test_a_registrys_replica_that_stopped_is_taken_anew_at_the_next_start(
    trio: Any, produce: Any
) -> None:
    info, grant, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    lead(node, REGISTRY_GROUP, *TOPICS)
    old = node.group(REGISTRY_GROUP).voter
    node.kill()
    node.boot()
    here = node.group(REGISTRY_GROUP)
    beat = r.Heartbeat(here.voter, 2 << 16, here.node.term + 1, here.node.log.last_index, 0)
    told(node, REGISTRY_GROUP, beat)
    trio.settle()
    assert [one.group for one in node.halts] == [REGISTRY_GROUP]
    trio.heal()
    led_anew(trio, REGISTRY_GROUP, node)
    trio.until(lambda: node.group(REGISTRY_GROUP).voter > old, "it never came back")
    assert trio.told(produce(info, grant, 0, b"x"), group).offset == 0
    assert trio.same_everywhere(group) == [b"x"]


def test_a_leader_that_stopped_is_not_counted_as_leading(trio: Any) -> None:
    _, _, group = settled(trio)
    node = trio.leader(group)
    here = node.group(group)
    record = entries.encode_control(GRANT)
    with suppress(NotLeader):
        here.propose(Payload(Kind.CONTROL, (record,), len(record)))
    trio.until(lambda: here.damage is not None, "it was not applied")
    assert here.node.role is raft.Role.LEADER
    standing = standing_of([here])
    assert (standing.held, standing.led, dict(standing.lagging)) == (1, 0, {})
    for member in here.node.core.state.members.values():
        member.match = 0
    assert behind(here) == []


def fill(trio: Any, produce: Any, info: Any, grant: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        request = produce(info, grant, number, b"v" * 300)
        assert trio.told(request, info.addresses[0].group).offset == number


def rot(node: Any, group: int, index: int) -> None:
    """Spoil the payload of an entry where it lies on a node's disk."""
    log = node.shard.writers[0].log
    stored = log.reader.stored(group, index)
    segment = log.segments.find(stored.place)
    at = stored.place - segment.base + ENTRY_HEADER_SIZE
    node.disk.flip(segment.name, at + stored.length // 2)


def rot_is_found(node: Any, group: int, index: int) -> None:
    """Spoil an entry, and let the scrub tell of it."""
    rot(node, group, index)
    place = node.shard.writers[0].log.reader.stored(group, index).place
    refill_of(node.shard).rotted(group, index, place)


def test_what_was_confirmed_survives_a_stop_while_old_entries_are_filled_in(
    trio: Any, produce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reopened as the same voter with what it had at its start, and was believed."""
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    fill(trio, produce, info, grant, 0, 60)
    trio.same_everywhere(group)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    leader = trio.leader(group)
    node, third = (one for one in trio.live() if one is not leader)
    node.kill()
    for index in (20, 21, 40):
        rot(node, group, index)
    node.boot()
    with monkeypatch.context() as patch:
        patch.setattr(Refill, "_take", lambda *_: None)  # nothing comes yet
        trio.until(lambda: node.group(group) and node.group(group).is_current, "not back")
        trio.isolate(third.id)
        fill(trio, produce, info, grant, 60, 30)  # one of the two that confirm is the node
        here = node.group(group)
        assert here.is_incomplete
        trio.isolate(node.id)
        assert lead(node, group, GRANT) == []
        assert here.damage is not None
        leader.kill()
    trio.heal()
    trio.run(10_000)
    assert node.group(group) is here, "nobody is left who could go on without it"
    leader.boot()
    trio.until(lambda: node.group(group).voter != here.voter, "it never came back")
    trio.until(lambda: node.group(group).is_current, "it lags")
    assert trio.same_everywhere(group) == [b"v" * 300] * 90


def test_a_replica_made_since_the_start_stops_while_an_entry_is_filled_in(
    trio: Any, produce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, grant, group = settled(trio)
    fill(trio, produce, info, grant, 0, 20)
    trio.same_everywhere(group)
    node = next(one for one in trio.live() if one is not trio.leader(group))
    with monkeypatch.context() as patch:
        patch.setattr(Refill, "_take", lambda *_: None)
        rot_is_found(node, group, 10)
        trio.run(300)
        trio.isolate(node.id)
        assert lead(node, group, GRANT) == []
    here = node.group(group)
    assert here.damage is not None
    assert not refill_of(node.shard).is_hopeful(group)
    trio.heal()
    trio.run(1_000)
    # As a real leader of a later term comes: whom it heard before was of a higher one.
    trio.leader(group).kill()
    trio.run(5_000)
    trio.nodes[next(id for id, one in trio.nodes.items() if not one.alive)].boot()
    trio.until(lambda: node.group(group).voter != here.voter, "it never came back")
    assert len(trio.same_everywhere(group)) == 20


def test_a_registrys_replica_that_stopped_is_not_opened_as_it_was_once_it_is_filled_in(
    trio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, group = settled(trio)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    node = next(one for one in trio.live() if one is not trio.leader(REGISTRY_GROUP))
    node.kill()
    node.boot()
    with monkeypatch.context() as patch:
        patch.setattr(Refill, "_take", lambda *_: None)
        trio.until(lambda: node.group(group) and node.group(group).is_current, "not back")
        later = trio.topic("later")
        trio.run(500)
        here = node.group(REGISTRY_GROUP)
        last = here.node.log.last_index
        rot_is_found(node, REGISTRY_GROUP, last)
        trio.isolate(node.id)
        contradicts = reg.TopicAltered(later.id + 1, 5, SettingsChange())
        lead(node, REGISTRY_GROUP, TOPICS[0], contradicts)
        assert here.damage is not None
    trio.heal()
    trio.run(5_000)
    assert node.group(REGISTRY_GROUP) is here
    assert (here.damage is not None, here.node.log.last_index >= last) == (True, True)


def large(trio: Any, node: Any, group: int, data: bytes) -> list[str]:
    """Send a node a snapshot of a group; return why the link ended by the time it is looked at."""
    here = node.group(group)
    sender = next(one for one in here.node.configuration.members if one != here.voter)
    term, index = here.node.term + 1, here.node.log.last_index + 1_000
    known = here.node.configuration
    meta = r.SnapshotMeta(index, term, known, index, term, len(data))
    ended: list[str] = []
    for start, end in pairwise([0, len(data) // 2, len(data)]):
        piece = r.InstallSnapshot(
            here.voter, sender, term, meta, start, data[start:end], end == len(data), False
        )
        ended += told(node, group, piece)
    while node.jobs:
        job = node.jobs.pop(0)
        if isinstance(job, ef.StartRead):
            effects = node.shard.handle(ev.ReadDone(job.ticket, job.reading.run(node.disk)))
            ended += [one.reason for one in effects if isinstance(one, ef.EndLink)]
    return ended


@pytest.mark.parametrize("size", [MIB, 3 * MIB, 100])
def test_a_large_snapshot_that_cannot_be_decoded_ends_the_link(trio: Any, size: int) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    before = node.group(group).node.log.last_index
    assert large(trio, node, group, b"\x91" + bytes(size)) == [
        "a snapshot came that cannot be decoded"
    ]
    assert node.shard.counts.bad_frames == 1
    assert (node.group(group).node.log.last_index, node.halts) == (before, [])
    assert node.group(group).damage is None
    trio.heal()
    trio.same_everywhere(group)


@pytest.mark.parametrize("size", [10, MIB])
def test_a_snapshot_of_a_newer_release_says_so(trio: Any, size: int) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    (why,) = large(trio, node, group, msgspec.msgpack.encode([99, [bytes(9)] * (size // 9)]))
    assert "written by a newer release of weir (level 99, this one reads up to 14)" in why
    assert "upgrade this node" in why
    assert node.group(group).damage is None


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (Kind.CONTROL, reg.LevelRaised(FORMAT_LEVEL + 1)),
        (Kind.CONTROL, b"\x92\xa6future\x01"),
        (10, b"an entry of a kind to come"),
    ],
    ids=["level", "record", "kind"],
)
def test_an_entry_of_a_newer_release_ends_the_link_and_says_so(
    trio: Any, kind: Any, record: Any
) -> None:
    trio.leader()
    node = trio[1]
    alone(trio, node)
    before = node.group(REGISTRY_GROUP).node.log.last_index
    (why,) = lead(node, REGISTRY_GROUP, record, kind=kind)
    assert "written by a newer release of weir" in why
    assert "upgrade this node" in why
    assert node.group(REGISTRY_GROUP).node.log.last_index == before
    trio.run(1_000)


def test_a_registry_of_a_higher_level_is_not_taken(trio: Any) -> None:
    trio.leader()
    node = trio[1]
    alone(trio, node)
    newer = Catalog()
    newer.nodes.level = FORMAT_LEVEL + 1
    (why,) = large(trio, node, REGISTRY_GROUP, packed(newer.encode()))
    assert f"(level {FORMAT_LEVEL + 1}, this one reads up to {FORMAT_LEVEL})" in why
    trio.run(1_000)
    assert isinstance(trio.told(m.ListTopics(""), 0), m.TopicList)


def test_a_registry_of_which_this_node_is_another_folder_is_not_taken(trio: Any) -> None:
    trio.leader()
    node = trio[1]
    alone(trio, node)
    stranger = Catalog()
    stranger.nodes.apply(reg.NodeJoined(1, "host1", 6800, birth=5))
    (why,) = large(trio, node, REGISTRY_GROUP, packed(stranger.encode()))
    assert "node 1 of this set has another data folder" in why
    trio.run(1_000)


FAR = (1 << 63) - 1
BEYOND = {
    "grant": part.MessagesGranted("c", 7, 0, 1, 5, FAR),
    "floor": part.PartitionJoined(1, FAR),
    "decision": part.ScatteringsDecided([(1, 1, 1, FAR, False, 0)]),
    "seal": part.PartitionSealed((1 << 62) + 1),
}


@pytest.mark.parametrize("what", [*BEYOND, "producer", "batch", "offset"])
def test_a_stamp_or_an_offset_with_no_room_above_it_ends_the_link(trio: Any, what: str) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    number, kind, data = group, Kind.CONTROL, BEYOND.get(what)
    if what == "producer":
        number, data = REGISTRY_GROUP, AuditProducerOpened(FAR, 0)
    elif data is None:
        plain = encode([b"x"], group=group, producer=1, epoch=1)
        place = (FAR, 0) if what == "batch" else (5, FAR - 1)
        kind, data = Kind.BATCHES, stamped(plain, *place) + bytes(plain[HEADER_SIZE:])
    before = node.group(number).node.log.last_index
    (why,) = lead(node, number, data, kind=kind)
    assert why.startswith("no leader wrote")
    assert node.group(number).node.log.last_index == before


@pytest.mark.parametrize("voters", [(1 << 16, 1 << 16), (0,), (), ((1 << 63) - 1,)])
def test_a_placement_that_no_configuration_can_be_ends_the_link(
    trio: Any, voters: tuple[int, ...]
) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    for kind in (reg.GroupsPlaced, reg.GroupsSettled):
        assert len(lead(node, REGISTRY_GROUP, kind([(group, voters)]))) == 1
    catalog = node.shard.topics.catalog
    before = catalog.voters(group)
    if len(voters) != 1:
        state = msgspec.msgpack.decode(packed(catalog.encode()))
        placements = [[of, voters if of == group else to] for of, to in state[-1][2]]
        state[-1][2] = placements
        (why,) = large(trio, node, REGISTRY_GROUP, packed(state))
        assert why == "a snapshot came that cannot be decoded"
    trio.heal()
    trio.run(1_000)
    assert catalog.voters(group) == before


def test_a_hub_that_no_device_has_is_not_forgotten(trio: Any) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    (why,) = lead(node, group, part.HubForgotten(-1))
    assert "`int` >= 0" in why
    assert lead(node, group, part.HubForgotten((1 << 64) - 1)) == []
    assert (node.halts, node.group(group).damage) == ([], None)


def test_a_batch_of_devices_that_cannot_be_read_stops_the_replica(trio: Any) -> None:
    _, _, group = settled(trio)
    node = trio[1]
    alone(trio, node)
    origins = Origins([1, 2], [1, 1], [0, 0], [0, 0])
    batch = encode([b"ab", b"cd"], group=group, producer=1, epoch=1, origins=origins)
    at = batch.index(b"\2\0\0\0\4\0\0\0")  # where the values end
    batch[at : at + 8] = b"\x09\0\0\0\4\0\0\0"
    sealed = bytes(renumbered(batch, group, 1, 1, 0))
    assert lead(node, group, sealed, kind=Kind.BATCHES) == []
    assert [one.group for one in node.halts] == [group]
    assert node.group(group).damage is not None
