"""Three whole shards in one process: disks in memory, links by hand, time that obeys."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from rigs.clocks import Clock, Skewed
from rigs.trunk_wires import TrunkWires
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, Member, ShardSettings
from weir.broker.replica.checkpoints import Opened
from weir.broker.runtime.reads import read_messages
from weir.broker.shard import Shard
from weir.errors import NotLeader, Unavailable
from weir.model.batch_builder import encode
from weir.model.ids import group_of, place_node, place_of
from weir.model.limits import FORMAT_LEVEL
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.link import LinkStream
from weir.protocol.trunk import Kind
from weir.storage.errors import LogDamaged
from weir.storage.format import checkpoint
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SYSTEM = 99

STEP_MS = 50

#: Far above two election timeouts.
PATIENCE_MS = 10_000

_AGAIN = {NotLeader.code, Unavailable.code}


class Node:
    """One node of one shard; what it asks of its host is done by `Trio`."""

    def __init__(self, id: int, trio: Trio, settings: dict[str, Any]) -> None:
        self.id = id
        self.trio = trio
        self.time = Skewed(trio.clock)
        self.disk = SimDisk(random.Random(id))
        #: Another disk, which says how far the log had been durable.
        self.other = SimDisk(random.Random(id + 100))
        self.began_on = self.disk
        self.generation = 1
        self.settings = settings
        self.birth = 0
        self.alive = False
        self.boot()

    def boot(self) -> None:
        """Start on what the disk holds."""
        members = tuple(Member(node, f"host{node}", 6800) for node in (1, 2, 3))
        log = Settings(
            log=0, system=SYSTEM, segment_bytes=64 * 1024, entry_bytes_max=16 * 1024,
            cache_bytes_max=1 << 16, spares=1,
        )  # fmt: skip
        if self.began_on is not self.disk:  # the log begins anew
            self.began_on, self.generation = self.disk, self.generation + 1
        self.position = DurablePosition(self.other, Owner(0, SYSTEM, self.generation))
        found = recover(self.disk, log, self.position.position)
        opened = Opened(found.log, found.groups, found.body, found.holes)
        dice = random.Random(f"{self.id}/{self.trio.clock.monotonic}").random
        settings = ShardSettings(random=dice, **self.settings)
        identity = Identity(SYSTEM, node=self.id, members=members, birth=self.birth)
        self.shard = Shard(identity, [opened], self.time, settings)
        self.jobs: list[Any] = []
        self.wants: set[int] = set()
        self.connects: list[ef.Connect] = []
        self.disconnects: list[int] = []
        self.replies: dict[int, list[tuple[int, m.Reply]]] = {}
        self.hangups: list[ef.Hangup] = []
        self.halts: list[ef.ReplicaHalted] = []
        #: What devices got, by session.
        self.raw: dict[int, bytes] = {}
        self.alive = True
        self._correlation = 0
        self.do(self.shard.start())

    def kill(self) -> None:
        """End at once: what was not synced is gone with the machine's memory."""
        self.alive = False
        self.jobs.clear()
        self.disk.crash()
        self.other.crash()
        self.trio.cut(self.id)

    def handle(self, event: ev.Event) -> None:
        if self.alive:
            self.do(self.shard.handle(event))

    def do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    self.shard.budget.release(charged)
                    self.sent(session, b"".join(buffers))
                case ef.Answers(replies):
                    for session, reply in replies.items():
                        self.sent(session, reply)
                case ef.SendToPeer(place, quick, buffers, charged):
                    self.shard.budget.release(charged)
                    self.trio.carry(self.id, place >> 16, quick, b"".join(buffers))
                case ef.Connect(node):
                    self.wants.add(node)
                    self.connects.append(effect)
                case ef.Disconnect(node):
                    self.disconnects.append(node)
                case ef.Hangup(session, reason):
                    self.hangups.append(effect)
                    self.trio.trunks.takes(self.id, session, Kind.HANGUP, reason.encode())
                case ef.ReplicaHalted():
                    self.halts.append(effect)
                case ef.Pass(place, buffers, charged):
                    self.shard.passed_on(place, charged)
                    self.trio.trunks.passed(self.id, place_node(place), b"".join(buffers))
                case _:
                    self.jobs.append(effect)

    def sent(self, session: int, data: bytes) -> None:
        """Let a peer have what the shard sent it, wherever it is."""
        if self.trio.trunks.takes(self.id, session, Kind.REPLIES, data):
            return
        if session in self.raw:
            self.raw[session] += data
            return
        for frame in ClientStream().receive(data):
            reply = frame.correlation, decode_reply(frame)
            self.replies.setdefault(session, []).append(reply)

    def step(self) -> None:
        """Do the oldest job."""
        job = self.jobs.pop(0)
        match job:
            case ef.StartFlush(log, flush):
                flush.run(self.disk)
                self.position.save(flush.end)
                self.handle(ev.Flushed(log, flush))
            case ef.StartRead(log, ticket, reading):
                try:
                    done = ev.ReadDone(ticket, reading.run(self.disk))
                except LogDamaged as error:
                    done = ev.ReadDone(ticket, (), str(error), error.position)
                self.handle(done)
            case ef.MakeSpare(log, spare):
                spare.run(self.disk)
                self.handle(ev.SpareMade(log, spare))
            case ef.StartChore(log, chore):
                self.handle(ev.ChoreDone(log, chore, chore.run(self.disk)))
            case ef.SaveCheckpoint(log, _, data):
                size = checkpoint.save(self.disk, data)
                self.handle(ev.CheckpointSaved(log, size=size))

    # -- clients -----------------------------------------------------------------------------

    def ask(self, request: m.Request, session: int = 1) -> int:
        """Send a request; return its correlation."""
        if session not in self.replies:
            self.replies[session] = []
            self.handle(ev.Opened(session))
            self.ask(m.Hello("test"), session)
        self._correlation += 1
        data = b"".join(encode_request(request, self._correlation))
        self.handle(ev.Received(session, ClientStream().receive(data)))
        return self._correlation

    def reply_to(self, correlation: int, session: int = 1) -> Any:
        """Return the reply, None while there is none."""
        found = [reply for number, reply in self.replies[session] if number == correlation]
        assert len(found) < 2, f"{len(found)} replies to request {correlation}"
        return found[0] if found else None

    def group(self, id: int) -> Any:
        """Return a group as this node has it, None if it does not."""
        return self.shard.writers[0].groups.get(id)

    def messages(self, id: int) -> list[bytes]:
        """Return all values that are committed here, as they lie in this node's log."""
        partition = self.shard.topics.partition(id)[1]
        state, found, offset = partition.state, [], partition.state.log_start
        while offset < state.next_offset:
            reading = read_messages(
                partition.group.log.reader, id, state.staging, offset, 1 << 20,
                partition.group.node.log.committed, state.next_offset,
            )  # fmt: skip
            assert reading is not None
            payloads = reading.cached or reading.run(self.disk)
            for batch in _batches(b"".join(payloads)):
                found += batch.values()
            offset = reading.next_offset
        return found


def _batches(data: bytes) -> Iterator[Any]:
    from weir.model.batch import Batch

    at = 0
    while at < len(data):
        batch = Batch(data, at)
        at += batch.header.total_size
        yield batch


class Trio:
    """Three nodes and what is on its way between them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.clock = Clock()
        self.links: set[tuple[int, int]] = set()
        self.apart: set[tuple[int, int]] = set()
        self.wires: dict[tuple[int, int, bool], list[bytes]] = defaultdict(list)
        self.trunks = TrunkWires(lambda id, event: self.nodes[id].handle(event))
        self.runs = 0
        self.nodes = {id: Node(id, self, settings) for id in (1, 2, 3)}

    def __getitem__(self, id: int) -> Node:
        return self.nodes[id]

    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    # -- links -------------------------------------------------------------------------------

    def carry(self, sender: int, to: int, quick: bool, data: bytes) -> None:
        if (sender, to) in self.links:
            self.wires[sender, to, quick].append(data)

    def cut(self, id: int) -> None:
        """Break all links from and to a node."""
        for sender, to in [link for link in sorted(self.links) if id in link]:
            self.links.discard((sender, to))
            self.wires.pop((sender, to, True), None)
            self.wires.pop((sender, to, False), None)
            self.trunks.cut(sender, to)
            self.nodes[sender].handle(ev.LinkClosed(place_of(to, 0)))

    def isolate(self, id: int) -> None:
        """Let nothing through from or to a node."""
        self.apart |= {pair for a in (1, 2, 3) for pair in ((a, id), (id, a))}
        self.cut(id)

    def heal(self) -> None:
        self.apart.clear()

    def connect(self) -> None:
        for node in self.live():
            for to in sorted(node.wants):
                link = node.id, to
                is_there = to in self.nodes and self.nodes[to].alive
                if is_there and link not in self.links and link not in self.apart:
                    self.links.add(link)
                    self.runs += 1
                    level = self.nodes[to].settings.get("level", FORMAT_LEVEL)
                    node.handle(ev.LinkOpened(place_of(to, 0), 1, self.runs, level))
                    self.trunks.join(node.id, to)

    def deliver(self) -> bool:
        moved = self.trunks.carry()
        for (sender, to, quick), sent in sorted(self.wires.items()):
            if sent:
                moved = True
                self.wires[sender, to, quick] = []
                frames = LinkStream().receive(b"".join(sent))
                self.nodes[to].handle(ev.PeerSent(place_of(sender, 0), frames))
        return moved

    # -- time --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Do all jobs and carry all frames, and whatever comes of them."""
        moved = True
        while moved:
            self.connect()
            moved = self.deliver()
            for node in self.live():
                while node.jobs:
                    moved = True
                    node.step()

    def one(self, dice: random.Random) -> None:
        """Do one job of a node, or let what one lane holds arrive."""
        self.connect()
        lanes = [(*lane, True) for lane, sent in sorted(self.wires.items()) if sent]
        jobs = [(node.id, 0, False, False) for node in self.live() if node.jobs]
        if not (lanes or jobs):
            return
        sender, to, quick, is_lane = dice.choice(lanes + jobs)
        if not is_lane:
            self.nodes[sender].step()
            return
        frames = LinkStream().receive(self.wires[sender, to, quick].pop(0))
        self.nodes[to].handle(ev.PeerSent(place_of(sender, 0), frames))

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and nothing else happen than what nodes do by themselves."""
        self.clock.wall += ms
        self.clock.monotonic += ms
        for node in self.live():
            node.handle(ev.Ticked())

    def run(self, ms: int) -> None:
        """Let time pass, in which everything arrives and is done."""
        for _ in range(ms // STEP_MS):
            self.pass_ms(STEP_MS)
            self.settle()

    def until(self, holds: Callable[[], Any], why: str = "it never came") -> Any:
        """Let time pass until something holds; return it."""
        for _ in range(PATIENCE_MS // STEP_MS):
            if found := holds():
                return found
            self.run(STEP_MS)
        raise AssertionError(why)

    # -- what the tests ask ------------------------------------------------------------------

    def leader(self, group: int = 0) -> Node:
        """Return who leads a group, once that is settled: it has applied an entry of its term."""

        def found() -> Node | None:
            for node in self.live():
                here = node.group(group)
                if here is not None and here.is_current and here.leader == here.voter:
                    machine = here.machine
                    if getattr(machine, "leads", True):
                        return node
            return None

        return self.until(found, f"nobody leads group {group}")  # type: ignore[no-any-return]

    def answer(self, node: Node, request: m.Request, session: int = 1) -> Any:
        """Ask a node, and return the reply."""
        correlation = node.ask(request, session)
        return self.until(lambda: node.reply_to(correlation, session), f"no reply to {request}")

    def told(self, request: m.Request, group: int) -> Any:
        """Ask who leads a group, again where a client would; return the reply that is left."""
        for _ in range(PATIENCE_MS // STEP_MS):
            reply = self.answer(self.leader(group), request)
            if not isinstance(reply, m.Refusal) or reply.code not in _AGAIN:
                return reply
            self.run(STEP_MS)
        raise AssertionError(f"still {reply}")

    def topic(self, name: str = "t", partitions: int = 1, **more: Any) -> m.TopicInfo:
        """Create a topic; return it once its partitions are led."""
        info = self.told(m.CreateTopic(name, partitions, if_absent=True, **more), 0)
        assert isinstance(info, m.TopicInfo), info
        for partition in range(partitions):
            self.leader(group_of(info.id, partition))
        return info

    def producer(self) -> m.ProducerGrant:
        grant = self.told(m.OpenProducer(), 0)
        assert isinstance(grant, m.ProducerGrant), grant
        return grant

    def same_everywhere(self, group: int) -> list[bytes]:
        """Return a partition's messages, once all live nodes have applied the same entries."""

        def same() -> bool:
            groups = [node.group(group) for node in self.live()]
            at = {(one.node.log.applied, one.node.log.last_index) for one in groups if one}
            return len(at) == 1 and None not in groups

        self.until(same, "the replicas never became the same")
        found = [(node.messages(group), node.group(group).machine.encode()) for node in self.live()]
        assert all(one == found[0] for one in found)
        return found[0][0]


def batch(
    info: m.TopicInfo, grant: m.ProducerGrant, sequence: int, *values: bytes, partition: int = 0,
    **columns: Any,
) -> m.Produce:  # fmt: skip
    address = info.addresses[partition]
    data = encode(
        list(values), group=address.group, producer=grant.producer, epoch=grant.epoch,
        sequence=sequence, **columns,
    )  # fmt: skip
    return m.Produce(address, 0, memoryview(data))
