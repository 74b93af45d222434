"""What the broker's tests share: a clock, and a shard whose disk does what it is told at once."""

from __future__ import annotations

from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, ShardSettings
from weir.broker.replica.checkpoints import Opened
from weir.broker.shard import Shard
from weir.model.batch import parse
from weir.model.batch_builder import encode
from weir.model.columns import References, chained, runs_of
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.device import Delivery, DeviceReplies, DeviceReply, DeviceStream
from weir.protocol.device import DeviceOpcode as Op
from weir.storage.errors import LogDamaged
from weir.storage.format import checkpoint
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SYSTEM = 99


class FakeTime:
    """Clocks that move when told to."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.monotonic = 0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic

    def pass_ms(self, ms: int) -> None:
        self.wall += ms
        self.monotonic += ms


class Rig:
    """A shard whose jobs wait in `jobs` until `settle` does them, and whose replies are kept."""

    def __init__(self, disk: SimDisk, time: FakeTime, settings: ShardSettings, cache: int) -> None:
        self.disk = disk
        self.time = time
        self.settings = settings
        self.log_settings = Settings(
            log=0,
            system=SYSTEM,
            segment_bytes=64 * 1024,
            entry_bytes_max=16 * 1024,
            cache_bytes_max=cache,
            spares=1,
        )
        self.boot()

    def boot(self) -> None:
        """Start on what the disk holds; whatever was in memory is gone."""
        found = recover(self.disk, self.log_settings)
        opened = Opened(found.log, found.groups, found.body)
        self.shard = Shard(Identity(SYSTEM), [opened], self.time, self.settings)
        self.jobs: list[Any] = []
        self.replies: dict[int, list[tuple[int, m.Reply]]] = {}
        self.device_replies: dict[int, list[DeviceReply]] = {}
        self.others: list[Any] = []
        self._devices: dict[int, DeviceReplies] = {}
        self._correlation = 0
        self.do(self.shard.start())
        self.settle()

    def do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    self.shard.budget.release(charged)
                    self._sent(session, b"".join(buffers))
                case ef.Answers(replies):
                    for session, reply in replies.items():
                        self._sent(session, reply)
                case (
                    ef.StartFlush()
                    | ef.StartRead()
                    | ef.MakeSpare()
                    | ef.SaveCheckpoint()
                    | ef.StartChore()
                ):
                    self.jobs.append(effect)
                case ef.ReplicaHalted(error=error):
                    raise error
                case _:
                    self.others.append(effect)

    def handle(self, event: ev.Event) -> None:
        self.do(self.shard.handle(event))

    def settle(self) -> None:
        """Do all jobs, and those that come of them."""
        while self.jobs:
            self.step()

    def step(self) -> None:
        """Do the oldest job."""
        job = self.jobs.pop(0)
        match job:
            case ef.StartFlush(log, flush):
                flush.run(self.disk)
                self.handle(ev.Flushed(log, flush))
            case ef.StartRead(log, ticket, reading):
                try:
                    done = ev.ReadDone(ticket, reading.run(self.disk))
                except LogDamaged as error:
                    done = ev.ReadDone(ticket, (), f"the read failed: {error}", error.position)
                self.handle(done)
            case ef.MakeSpare(log, spare):
                spare.run(self.disk)
                self.handle(ev.SpareMade(log, spare))
            case ef.StartChore(log, chore):
                self.handle(ev.ChoreDone(log, chore, chore.run(self.disk)))
            case ef.SaveCheckpoint(log, _, data):
                size = checkpoint.save(self.disk, data)
                self.handle(ev.CheckpointSaved(log, size=size))

    def tick(self, ms: int = 50) -> None:
        self.time.pass_ms(ms)
        self.handle(ev.Ticked())

    # -- clients -----------------------------------------------------------------------------

    def connect(self, session: int = 1, hello: bool = True) -> int:
        self.replies[session] = []
        self.handle(ev.Opened(session))
        if hello:
            self.ask(session, m.Hello("test"))
            assert isinstance(self.replies[session].pop()[1], m.Welcome)
        return session

    def ask(self, session: int, *requests: m.Request) -> int:
        """Send requests in one read; return the correlation of the last one."""
        frames: list[Any] = []
        for request in requests:
            self._correlation += 1
            data = b"".join(encode_request(request, self._correlation))
            frames += ClientStream().receive(data)
        self.handle(ev.Received(session, frames))
        return self._correlation

    def answer(self, session: int, request: m.Request) -> Any:
        """Send one request, settle, return the reply to it."""
        correlation = self.ask(session, request)
        self.settle()
        found = [reply for number, reply in self.replies[session] if number == correlation]
        assert len(found) == 1, f"{len(found)} replies to {request}"
        return found[0]

    def topic(self, session: int, name: str = "t", partitions: int = 1) -> m.TopicInfo:
        info = self.answer(session, m.CreateTopic(name, partitions))
        assert isinstance(info, m.TopicInfo)
        return info

    def batch(
        self, info: m.TopicInfo, grant: m.ProducerGrant, sequence: int, *values: bytes, **more: Any
    ) -> m.Produce:
        address = info.addresses[0]
        fields = {"producer": grant.producer, "epoch": grant.epoch, **more}
        seen = fields.pop("seen", 0)
        data = encode(list(values), group=address.group, sequence=sequence, **fields)
        return m.Produce(address, seen, memoryview(data))

    # -- devices -----------------------------------------------------------------------------

    def device(self, session: int, *frames: bytes) -> None:
        """Send device frames in one read."""
        if session not in self._devices:
            self._devices[session] = DeviceReplies()
            self.device_replies[session] = []
            self.handle(ev.Opened(session))
        self.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))

    def expects_device(self, session: int) -> None:
        """Read what this session is sent as a device does."""
        self._devices[session] = DeviceReplies()
        self.device_replies[session] = []

    def forget(self, session: int) -> None:
        """Read no more as a device does what this session is sent: it has ended."""
        self._devices.pop(session, None)

    def _sent(self, session: int, data: bytes) -> None:
        if session in self._devices:
            self.device_replies[session] += self._devices[session].receive(data)
        else:
            for frame in ClientStream().receive(data):
                reply = decode_reply(frame)
                self.replies.setdefault(session, []).append((frame.correlation, reply))


LEASE_MS = 5_000


class Doors:
    """Devices in sessions 50 on, in one cluster of topic t; a client in session 1 publishes."""

    def __init__(self, rig: Rig, partitions: int = 1) -> None:
        self.rig = rig
        rig.connect()
        self.info = rig.topic(1, "t", partitions)
        self.grant = rig.answer(1, m.OpenProducer())
        self.sequences = [0] * partitions

    def hub(self, session: int = 50) -> int:
        self.rig.device(session, d.hello(session, 1, "t"))
        assert self.replies(session)[0].code == 0
        return session

    def subscribed(
        self, session: int = 50, sn: int = 1, partition: int = 0, in_hand: int = 64
    ) -> int:
        self.hub(session)
        self.rig.device(session, d.subscribe(sn, "crew", "t", partition, LEASE_MS, in_hand))
        opcode = Op.SUBSCRIBE_LIMITED if in_hand else Op.SUBSCRIBE
        assert self.replies(session)[0] == DeviceReply(opcode, sn, 0)
        return session

    def publish(self, *values: bytes, partition: int = 0) -> None:
        info = self.info
        here = m.TopicInfo(
            info.id, info.namespace, info.name, info.order, [info.addresses[partition]]
        )
        batch = self.rig.batch(here, self.grant, self.sequences[partition], *values)
        assert isinstance(self.rig.answer(1, batch), m.Confirm)
        self.sequences[partition] += len(values)

    def replies(self, session: int = 50) -> list[DeviceReply]:
        self.rig.settle()
        found = list(self.rig.device_replies.get(session, ()))
        self.rig.device_replies.get(session, []).clear()
        return found

    def ask(self, *frames: bytes, session: int = 50) -> list[DeviceReply]:
        self.rig.device(session, *frames)
        return self.replies(session)

    def pull(self, most: int = 9, size: int = 0, sn: int = 1, session: int = 50) -> Delivery:
        """Pull, and return what came; whatever else came is a notify."""
        replies = self.ask(d.pull(sn, most, size), session=session)
        (reply,) = [r for r in replies if r.opcode == Op.PULL]
        assert all(r.opcode == Op.NOTIFY for r in replies if r.opcode != Op.PULL)
        assert isinstance(reply.content, Delivery)
        return reply.content

    def ack(self, delivery: Delivery, session: int = 50) -> int:
        first, last = delivery.offsets[0], delivery.offsets[-1]
        frame = d.ack(1, delivery.partition, delivery.fence, first, last + 1)
        (reply,) = [r for r in self.ask(frame, session=session) if r.opcode == Op.ACK]
        return reply.code


class Publisher:
    """One producer that sends a value piece by piece."""

    def __init__(self, rig: Any, info: m.TopicInfo, session: int = 1) -> None:
        self.rig, self.info, self.session = rig, info, session
        self.grant = rig.answer(session, m.OpenProducer())
        self.sequence = 0
        #: Of the chunks that were taken since the last piece at byte 0.
        self.hash = 0

    def ask(self, *values: bytes, **more: Any) -> Any:
        batch = self.rig.batch(self.info, self.grant, self.sequence, *values, **more)
        reply = self.rig.answer(self.session, batch)
        if isinstance(reply, m.Confirm):
            self.sequence += max(len(values), 1)
            if "chunk_at" in more:
                self.hash = chained(self.hash if more["chunk_at"] else 0, parse(batch.batch).hash)
        return reply

    def pieces(self, *pieces: bytes, at: int = 0) -> list[int]:
        """Send pieces from byte `at` on; return the indices of their entries."""
        indices = []
        for piece in pieces:
            confirm = self.ask(piece, chunk_at=at)
            assert (confirm.offset, confirm.duplicate) == (-1, False)
            indices.append(confirm.index)
            at += len(piece)
        return indices

    def close(self, size: int, *indices: int, **more: Any) -> Any:
        return self.ask(references=References(size, self.hash, runs_of(indices)), **more)
