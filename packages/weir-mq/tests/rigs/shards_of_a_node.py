"""Several shards of a node, as state machines over disks that do what they are told at once."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from weir.access.wrapping import KeyRing
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.replica.checkpoints import Opened
from weir.broker.shard import Shard
from weir.model.batch_builder import encode
from weir.protocol import trunk
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.trunk import Kind, TrunkStream
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SYSTEM = 99
RING = KeyRing([bytes(range(32))])

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
            ShardSettings(
                self.node.budget, ports=(1, 2, 3), key_ring=RING,
                secret_bytes=bytes([self.number + 1]).__mul__,
            ), self.node.layout,
        )  # fmt: skip
        self.jobs: deque[Any] = deque()
        self.replies: dict[int, list[tuple[int, m.Reply]]] = {}
        self.raw: dict[int, bytes] = {}
        self.hung_up: list[int] = []
        self.stopped = False
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
                case ef.Answers(replies):
                    self.answered(replies)
                case ef.Pass(shard, buffers, charged):
                    self.node.wires[self.number, shard].append((b"".join(buffers), charged))
                case ef.Hangup(session, reason):
                    self.hung_up.append(session)
                    if session in self.guests:
                        other, remote = self.guests[session]
                        frame = trunk.encode(Kind.HANGUP, remote, reason.encode())
                        self.node.back[other, self.number].append(b"".join(frame))
                case ef.Stopped():
                    self.stopped = True
                case ef.StartFlush() | ef.StartRead() | ef.MakeSpare() | ef.SaveCheckpoint():
                    self.jobs.append(effect)

    def answered(self, replies: dict[int, bytes]) -> None:
        gone: dict[int, list[tuple[int, bytes]]] = {}
        for session, reply in replies.items():
            if session in self.guests:
                other, remote = self.guests[session]
                gone.setdefault(other, []).append((remote, reply))
            else:
                self.sent(session, reply)
        for other, answers in gone.items():
            self.node.back[other, self.number].append(b"".join(trunk.encode_answers(answers)))

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
                self.disks[log].replace(name, data.pack())
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
                if pair[1] == number:
                    for _, charged in self.wires[pair]:
                        self.all[pair[0]].shard.passed_on(number, charged)
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

    def cut(self, one: int, other: int) -> None:
        """Break the trunk between two shards that go on."""
        for asking, serving in ((one, other), (other, one)):
            for _, charged in self.wires[asking, serving]:
                self.all[asking].shard.passed_on(serving, charged)
            self.wires[asking, serving].clear()
            self.back[asking, serving].clear()
            for key, guest in list(self._guests.items()):
                if key[:2] == (asking, serving):
                    del self._guests[key]
                    self.all[serving].handle(ev.Closed(guest))
            self.all[asking].handle(ev.TrunkClosed(serving))

    def join(self, one: int, other: int) -> None:
        """Put a trunk between two shards."""
        self.all[one].handle(ev.TrunkOpened(other))
        self.all[other].handle(ev.TrunkOpened(one))

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
            here.shard.passed_on(serving, charged)
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
            principal, how = trunk.decode_opened(body)
            there.handle(ev.Opened(number, principal, 0, how.address, how.admitted_at, how.token))
        elif kind == Kind.CLOSED:
            number = self._guests.pop(key)
            del there.guests[number]
            there.handle(ev.Closed(number))
        elif kind == Kind.ARRIVALS:
            principal, arrivals = body
            for one in arrivals:
                key = (asking, there.number, one.session)
                number = self._guests[key] = next(there.numbers)
                there.guests[number] = (asking, one.session)
                one.session = number
            there.handle(ev.Arrived(arrivals, principal))
        else:
            there.handle(ev.Received(self._guests[key], [body]))

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
