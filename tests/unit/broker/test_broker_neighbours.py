"""Several shards of a node, as state machines: what goes over a trunk waits until it is let go."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.feed import FENCE_WITHIN_MS
from weir.broker.identity import Identity
from weir.broker.layout import Layout
from weir.broker.restore import Opened
from weir.broker.shard import Shard, ShardSettings
from weir.errors import Fenced, Overloaded, Unavailable, UnknownOpcode, UnknownTopic
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.batch import encode
from weir.sim.disk import SimDisk
from weir.wire import device, trunk
from weir.wire import messages as m
from weir.wire.client import ClientStream, decode_reply, encode_request
from weir.wire.device import DeviceReplies, DeviceStream
from weir.wire.frame import take_client_frame
from weir.wire.trunk import Kind, TrunkStream

SYSTEM = 99
KIB = 1024


class Clock:
    wall = 1_700_000_000_000
    monotonic = 0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


class One:
    """One shard, its disks, and what it wrote to its trunks and peers."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.number = node, number
        self.disks = {n: SimDisk(random.Random(n)) for n in node.layout.logs_of(number)}
        self.up = False

    def boot(self) -> None:
        logs = []
        for n, disk in self.disks.items():
            settings = Settings(n, SYSTEM, 64 * KIB, 16 * KIB, 1 << 20, 0)
            found = recover(disk, settings)
            logs.append(Opened(found.log, found.groups, found.body))
        self.shard = Shard(
            Identity(SYSTEM, shard=self.number), logs, self.node.clock,
            ShardSettings(self.node.budget, ports=(1, 2, 3)), self.node.layout,
        )  # fmt: skip
        self.jobs: deque[Any] = deque()
        self.replies: dict[int, list[tuple[int, m.Reply]]] = {}
        self.raw: dict[int, bytes] = {}
        self.hung_up: list[int] = []
        #: By session here, who it is: the other shard, and its number there.
        self.guests: dict[int, tuple[int, int]] = {}
        self.numbers = iter(range(1_000_000 * (self.number + 1), 1 << 40))
        self.up = True
        self.do(self.shard.start())

    def handle(self, event: ev.Event) -> None:
        self.do(self.shard.handle(event))

    def do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    self.shard.budget.release(charged)
                    self.sent(session, b"".join(buffers))
                case ef.Pass(shard, buffers, charged):
                    self.node.wires[self.number, shard].append((b"".join(buffers), charged))
                case ef.Hangup(session, reason):
                    self.hung_up.append(session)
                    if session in self.guests:
                        other, remote = self.guests[session]
                        frame = trunk.encode(Kind.HANGUP, remote, reason.encode())
                        self.node.back[other, self.number].append(b"".join(frame))
                case ef.StartFlush() | ef.StartRead() | ef.MakeSpare() | ef.SaveCheckpoint():
                    self.jobs.append(effect)

    def sent(self, session: int, data: bytes) -> None:
        if session in self.guests:
            other, remote = self.guests[session]
            frame = trunk.encode(Kind.REPLIES, remote, data)
            self.node.back[other, self.number].append(b"".join(frame))
        elif session in self.raw:
            self.raw[session] += data
        else:
            for frame in ClientStream().receive(data):
                answer = (frame.correlation, decode_reply(frame))
                self.replies.setdefault(session, []).append(answer)

    def work(self) -> bool:
        if not self.jobs:
            return False
        match self.jobs.popleft():
            case ef.StartFlush(log, flush):
                flush.run(self.disks[log])
                self.handle(ev.Flushed(log, flush))
            case ef.StartRead(log, ticket, reading):
                self.handle(ev.ReadDone(ticket, reading.run(self.disks[log])))
            case ef.MakeSpare(log, spare):
                spare.run(self.disks[log])
                self.handle(ev.SpareMade(log, spare))
            case ef.SaveCheckpoint(log, name, data):
                self.disks[log].replace(name, data)
                self.handle(ev.CheckpointSaved(log))
        return True


class Node:
    """Shards and the trunks between them."""

    def __init__(self, shards: int, logs: int = 4, budget: int = 1 << 24) -> None:
        self.clock, self.budget = Clock(), budget
        self.layout = Layout(logs, shards)
        pairs = [(a, b) for a in range(shards) for b in range(shards) if a != b]
        #: By asking and serving shard, what was written and not read.
        self.wires: dict[tuple[int, int], deque[tuple[bytes, int]]] = {p: deque() for p in pairs}
        self.back: dict[tuple[int, int], deque[bytes]] = {p: deque() for p in pairs}
        self.blocked: set[tuple[int, int]] = set()
        self._guests: dict[tuple[int, int, int], int] = {}
        self._correlation = 0
        self.all = [One(self, n) for n in range(shards)]
        for one in self.all:
            self.boot(one.number)
        self.settle()

    def boot(self, number: int) -> None:
        self.all[number].boot()
        for other in self.all:
            if other.up and other.number != number:
                self.all[number].handle(ev.TrunkOpened(other.number))
                other.handle(ev.TrunkOpened(number))

    def kill(self, number: int) -> None:
        self.all[number].up = False
        for pair in self.wires:
            if number in pair:
                self.wires[pair].clear()
                self.back[pair].clear()
        for key, guest in list(self._guests.items()):
            if number in key[:2]:
                del self._guests[key]
                if key[0] == number:
                    self.all[key[1]].handle(ev.Closed(guest))
        for other in self.all:
            if other.up:
                other.handle(ev.TrunkClosed(number))

    def settle(self) -> None:
        """Do all jobs and carry all frames, but those of blocked trunks."""
        while any([one.up and one.work() for one in self.all] + [*map(self._carry, self.wires)]):
            pass

    def _carry(self, pair: tuple[int, int]) -> bool:
        asking, serving = pair
        if pair in self.blocked or not (self.all[asking].up and self.all[serving].up):
            return False
        there, here = self.all[serving], self.all[asking]
        if self.wires[pair]:
            data, charged = self.wires[pair].popleft()
            here.shard.budget.release(charged)
            for frame in TrunkStream().receive(data):
                self._serve(there, asking, frame)
            return True
        if self.back[pair]:
            frames = TrunkStream().receive(self.back[pair].popleft())
            here.handle(ev.PassedBack(serving, frames))
            return True
        return False

    def _serve(self, there: One, asking: int, frame: trunk.TrunkFrame) -> None:
        kind, remote, body = frame
        key = (asking, there.number, remote)
        if kind == Kind.OPENED:
            number = self._guests[key] = next(there.numbers)
            there.guests[number] = (asking, remote)
            there.handle(ev.Opened(number, bytes(body).decode()))
        elif kind == Kind.CLOSED:
            there.handle(ev.Closed(self._guests.pop(key)))
        else:
            request = take_client_frame(body) if kind == Kind.CLIENT else trunk.decode_device(body)
            there.handle(ev.Received(self._guests[key], [request]))

    # -- peers -------------------------------------------------------------------------------

    def connect(self, shard: int, session: int = 1) -> None:
        self.all[shard].handle(ev.Opened(session))
        welcome = self.answer(shard, m.Hello("test"), session)
        assert (welcome.shard, welcome.ports) == (shard, (1, 2, 3))

    def ask(self, shard: int, request: m.Request, session: int = 1) -> int:
        self._correlation += 1
        data = b"".join(encode_request(request, self._correlation))
        self.all[shard].handle(ev.Received(session, ClientStream().receive(data)))
        return self._correlation

    def reply(self, shard: int, correlation: int, session: int = 1) -> Any:
        found = [r for n, r in self.all[shard].replies.get(session, []) if n == correlation]
        assert len(found) <= 1
        return found[0] if found else None

    def answer(self, shard: int, request: m.Request, session: int = 1) -> Any:
        correlation = self.ask(shard, request, session)
        self.settle()
        reply = self.reply(shard, correlation, session)
        assert reply is not None, f"no reply to {request}"
        return reply

    def batch(self, address: Any, grant: m.ProducerGrant, sequence: int = 0) -> m.Produce:
        data = encode([b"v%d" % sequence], group=address.group, producer=grant.producer,
                      epoch=grant.epoch, sequence=sequence)  # fmt: skip
        return m.Produce(address, 0, memoryview(data))


@pytest.fixture
def node() -> Node:
    node = Node(3)
    for shard in range(3):
        node.connect(shard)
    return node


def test_all_shards_come_up_and_know_the_same_topics(node: Node) -> None:
    assert all(one.shard.ready for one in node.all)
    info = node.answer(2, m.CreateTopic("t", 4))
    assert [address.log for address in info.addresses] == [1, 2, 3, 0]
    for shard in range(3):
        assert node.answer(shard, m.DescribeTopic("t")) == info
        assert node.answer(shard, m.ListTopics()).topics == [info]
    assert sum(one.shard.partitions_led for one in node.all) == 4


def test_what_is_elsewhere_is_passed_on_and_confirmed_by_its_owner(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(1, m.OpenProducer())
    for address in info.addresses:
        for shard in range(3):
            confirm = node.answer(shard, node.batch(address, grant, shard))
            assert (confirm.offset, confirm.duplicate) == (shard, False)
        fetched = node.answer((address.shard + 1) % 3, m.Fetch(address, 0, 1 << 20))
        assert (fetched.offset, fetched.next_offset) == (0, 3)
    assert all(one.shard.budget.used == 0 for one in node.all)


def test_a_reply_of_the_registry_waits_until_all_who_follow_know(node: Node) -> None:
    node.blocked = {(2, 0)}
    created = node.ask(0, m.CreateTopic("t"))
    opened = node.ask(1, m.OpenProducer())
    node.settle()
    assert node.reply(0, created) is None
    assert node.reply(1, opened) is None
    node.blocked.clear()
    node.settle()
    assert isinstance(node.reply(0, created), m.TopicInfo)
    assert isinstance(node.reply(1, opened), m.ProducerGrant)


def test_a_fence_waits_for_a_shard_that_is_away_and_other_grants_do_not(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    node.kill(2)
    assert isinstance(node.answer(1, m.CreateTopic("u")), m.TopicInfo)
    assert isinstance(node.answer(1, m.OpenProducer()), m.ProducerGrant)
    fence = node.ask(1, m.OpenProducer(grant.producer))
    node.settle()
    assert node.reply(1, fence) is None
    node.boot(2)
    node.settle()
    fenced = node.reply(1, fence)
    assert (fenced.producer, fenced.epoch) == (grant.producer, 1)
    for address in info.addresses:
        assert node.answer(0, node.batch(address, grant)).code == Fenced.code
        assert node.answer(0, node.batch(address, fenced)).offset == 0


def test_a_fence_that_waits_too_long_is_refused(node: Node) -> None:
    grant = node.answer(0, m.OpenProducer())
    node.kill(2)
    fence = node.ask(0, m.OpenProducer(grant.producer))
    node.settle()
    node.clock.monotonic += FENCE_WITHIN_MS
    node.all[0].handle(ev.Ticked())
    assert node.reply(0, fence).code == Unavailable.code


def test_what_is_not_known_here_yet_is_asked_for_before_it_is_refused(node: Node) -> None:
    """A client heard of a topic from another client, before this shard did."""
    node.blocked = {(1, 0)}
    node.ask(0, m.CreateTopic("t"))
    while node.all[0].work():
        pass
    described, absent = node.ask(1, m.DescribeTopic("t")), node.ask(1, m.DescribeTopic("u"))
    assert node.reply(1, described) is None
    node.blocked.clear()
    node.settle()
    assert node.reply(1, described).name == "t"
    assert node.reply(1, absent).code == UnknownTopic.code


def test_order_is_kept_while_a_session_waits_for_news(node: Node) -> None:
    node.blocked = {(1, 0)}
    first, second = node.ask(1, m.DescribeTopic("nowhere")), node.ask(1, m.Ping())
    assert node.reply(1, second) is None
    node.blocked.clear()
    node.settle()
    assert [n for n, _ in node.all[1].replies[1]][-2:] == [first, second]


def test_without_the_registrys_shard_nothing_is_said_not_to_exist(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    waiting = node.ask(1, m.DescribeTopic("u"))
    node.kill(0)
    assert node.reply(1, waiting).code == Unavailable.code
    for request in (m.DescribeTopic("u"), m.ListTopics(), m.CreateTopic("u"), m.OpenProducer()):
        assert node.answer(1, request).code == Unavailable.code
    for address in info.addresses:  # those that are there go on
        reply = node.answer(1, node.batch(address, grant))
        expected = m.Refusal if address.shard == 0 else m.Confirm
        assert isinstance(reply, expected)
    node.boot(0)
    node.settle()
    assert node.answer(1, m.DescribeTopic("u")).code == UnknownTopic.code
    assert node.answer(2, m.CreateTopic("u")).name == "u"


def test_a_shard_that_starts_knows_nothing_until_its_registry_is_read(node: Node) -> None:
    """Its trunks may be open before its log is applied: that is no proof of absence."""
    info = node.answer(0, m.CreateTopic("t", 4))
    node.kill(0)
    node.all[0].boot()
    node.all[0].jobs.clear()  # the first flush is still in flight
    node.all[1].handle(ev.TrunkOpened(0))
    address = next(a for a in info.addresses if a.shard == 0)
    assert node.answer(1, m.Fetch(address, 0, 1)).code == Unavailable.code


def test_requests_of_a_trunk_that_breaks_are_refused_and_may_be_sent_again(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(1, 2)}
    produce = node.ask(1, node.batch(address, grant))
    poll = node.ask(1, m.Fetch(address, 0, 1, 1_000))
    node.kill(2)
    node.blocked.clear()
    assert {node.reply(1, n).code for n in (produce, poll)} == {Unavailable.code}
    assert node.answer(1, node.batch(address, grant)).code == Unavailable.code
    node.boot(2)
    node.settle()
    assert node.answer(1, node.batch(address, grant)).offset == 0


def test_a_peer_that_goes_is_gone_everywhere(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.answer(1, node.batch(address, grant))
    lease = m.Pull(address, "crew", 10, 1 << 20)
    assert node.answer(1, lease).fence
    assert node.answer(0, lease).fence == 0  # it is with the other consumer
    node.all[1].handle(ev.Closed(1))
    node.settle()
    assert node.answer(0, lease).fence


def test_a_shard_short_of_memory_passes_nothing_large_on(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.all[1].shard.budget.take(node.budget)
    data = encode([bytes(8 * KIB)], group=address.group, producer=grant.producer, epoch=0,
                  sequence=0)  # fmt: skip
    assert node.answer(1, m.Produce(address, 0, memoryview(data))).code == Overloaded.code
    assert node.answer(1, m.Positions(address)).end == 0
    node.all[1].shard.budget.release(node.budget)
    assert node.answer(1, m.Produce(address, 0, memoryview(data))).offset == 0


def test_only_shards_may_follow(node: Node) -> None:
    for shard in range(3):
        assert node.answer(shard, m.Follow(0)).code == UnknownOpcode.code


def test_locks_publish_by_any_shard_and_come_again_when_theirs_is_gone(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("locks", 4))
    one, replies = node.all[1], DeviceReplies()
    for session, address in enumerate(info.addresses, 100):
        one.raw[session] = b""
        one.handle(ev.Opened(session))
        partition = address.group & 0xFFFF
        frames = [device.hello(session, 1, "locks", partition)]
        frames += [device.publish(1, b"v%d" % n, n) for n in range(3)]
        one.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))
        node.settle()
        found = replies.receive(one.raw[session])
        assert [(reply.code, reply.offset) for reply in found[1:]] == [(0, 0), (0, 1), (0, 2)]
    node.kill(2)
    theirs = [s for s, a in enumerate(info.addresses, 100) if a.shard == 2]
    assert one.hung_up == theirs


def test_a_lock_moves_only_when_its_publishes_are_confirmed(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("locks", 4))
    here, there = (
        next(a.group & 0xFFFF for a in info.addresses if a.shard == shard) for shard in (1, 2)
    )
    one, replies = node.all[1], DeviceReplies()
    one.raw[7] = b""
    one.handle(ev.Opened(7))

    def say(*frames: bytes) -> None:
        one.handle(ev.Received(7, DeviceStream().receive(b"".join(frames))))

    node.blocked = {(1, 2)}
    say(device.hello(5, 1, "locks", there), device.publish(1, b"x", 0))
    say(device.hello(5, 1, "locks", here))
    refused = replies.receive(one.raw[7])
    assert [reply.code for reply in refused] == [2]
    node.blocked.clear()
    node.settle()
    one.raw[7] = b""
    say(device.hello(5, 1, "locks", here), device.publish(1, b"y", 0))
    node.settle()
    assert [reply.code for reply in replies.receive(one.raw[7])] == [0, 0]


def test_a_long_list_of_topics_comes_in_pages(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.broker.requests._PAGE_BYTES", 1_000)
    for n in range(40):
        node.answer(0, m.CreateTopic(f"t{n:02}", 3 if n % 2 else 1))
    names: list[str] = []
    after, pages, more = "", 0, True
    while more:
        page = node.answer(1, m.ListTopics("", after))
        names += [topic.name for topic in page.topics]
        after, more, pages = f"default/{names[-1]}", page.more, pages + 1
    assert names == [f"t{n:02}" for n in range(40)]
    assert pages > 3


def test_a_stop_waits_for_what_was_passed_on(node: Node) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(1, 2)}
    produce = node.ask(1, node.batch(address, grant))
    stopped: list[ef.Effect] = []
    for _ in range(5):
        effects = node.all[1].shard.handle(ev.Stopping())
        stopped += [e for e in effects if isinstance(e, ef.Stopped)]
        node.all[1].do(effects)
        node.settle()
    assert not stopped
    node.blocked.clear()
    node.settle()
    assert node.reply(1, produce).offset == 0
