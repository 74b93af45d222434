"""A real node, and a peer that passed the handshake of a link and means harm: by whatever it says
on any lane, the worst is that its link ends.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import random
import secrets
import typing
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

import weir
import weir_raft as raft
from weir.broker.api.settings import Member
from weir.broker.records import entries
from weir.broker.records import partition as part
from weir.broker.records import registry as reg
from weir.broker.records.entries import Payload
from weir.broker.replica.frames import pack as pack_message
from weir.errors import DamagedRange
from weir.model.batch import HEADER_SIZE, renumbered, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins
from weir.model.ids import voter_of
from weir.model.topic import Mode
from weir.protocol import device as device
from weir.protocol import link, trunk
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir.protocol.frame import CLIENT_HEADER, CLIENT_VERSION
from weir.protocol.link import Greeting, Lane, LinkAnswer, LinkHello, Verdict
from weir.protocol.trunk import OWN_SESSION
from weir.protocol.trunk import Kind as TrunkKind
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, MemoryConfig, NodeConfig
from weir.server.disk.node_folder import NodeFolder, Part
from weir.storage.format.frame import Kind
from weir.testing.nodes import free_ports
from weir_raft.messages import SnapshotMeta

GOLDEN = Path(__file__).parents[4] / "docs" / "client-frames.json"
SYSTEM = 777
TO, SENDER = voter_of(1), voter_of(2)
LANES = (Lane.QUICK, Lane.BULK, Lane.TRUNK)
#: Deletes what the others need, or cuts the peer off, as it may.
LEFT_OUT = ("ChangeNode", "DeleteTopic")

pack = msgspec.msgpack.encode


class HostileNode:
    """Speaks as node 2: dials all lanes of node 1, and takes all that node 1 dials."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.brokerset = 1
        self._lanes: dict[Lane, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Where node 1 asks node 2.
        self.asked: asyncio.Future[asyncio.StreamWriter] = asyncio.Future()
        self.own_port = 0
        self._run = 0
        self._tasks.add(asyncio.create_task(self._ping()))

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.own_port = server.sockets[0].getsockname()[1]
        return server

    async def dial(self) -> None:
        self.cut()
        self._run = secrets.randbits(60)
        for lane in LANES:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            hello = LinkHello(
                1, SYSTEM, self.brokerset, 2, 0, 1, 1, 1, self._run, lane, 1, 0,
                "127.0.0.1" if self.own_port else "", self.own_port, 99, 5,
            )  # fmt: skip
            writer.write(link.encode_greeting(hello))
            body = await greeting(reader)
            assert body is not None, "hung up on"
            answer = link.decode_answer(body)
            assert answer.verdict == Verdict.ACCEPTED, answer.reason
            self._lanes[lane] = reader, writer
            self._tasks.add(asyncio.create_task(self._drain(reader)))

    def say(self, lane: Lane, *buffers: Any) -> None:
        self._lanes[lane][1].writelines(buffers)

    def is_linked(self) -> bool:
        return len(self._lanes) == len(LANES) and not any(
            reader.at_eof() or writer.is_closing() for reader, writer in self._lanes.values()
        )

    async def until_cut(self) -> None:
        async with asyncio.timeout(40):
            while self.is_linked():
                await asyncio.sleep(0.01)

    def cut(self) -> None:
        for _, writer in self._lanes.values():
            writer.close()
        self._lanes = {}

    def end(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()

    async def _ping(self) -> None:
        while True:
            if Lane.QUICK in self._lanes:
                self.say(Lane.QUICK, *link.encode(link.PING, 0))
            await asyncio.sleep(0.1)

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65_536):
                pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of a server that is cancelled is told of by the loop.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (body := await greeting(reader)) is None:
            return
        hello = link.decode_hello(body)
        answer = LinkAnswer(Verdict.ACCEPTED, "", 2, 0, 1, 1, self._run)
        writer.write(link.encode_greeting(answer))
        if hello.lane is Lane.TRUNK:
            await asyncio.sleep(0.2)  # what comes at once would be taken for a greeting
            if self.asked.done():
                self.asked = asyncio.Future()
            self.asked.set_result(writer)
        stream = link.LinkStream()
        while data := await reader.read(65_536):
            if hello.lane is Lane.QUICK and any(f.kind == link.PING for f in stream.receive(data)):
                writer.writelines(link.encode(link.PING, 0))


async def greeting(reader: asyncio.StreamReader) -> memoryview | None:
    """Return the body of the other side's greeting; None if it hung up."""
    async with asyncio.timeout(40):
        found, body = Greeting(), None
        while body is None and (data := await reader.read(65_536)):
            body = found.receive(data)
    return body


@contextlib.asynccontextmanager
async def a_node(folder: Path) -> AsyncIterator[tuple[HostileNode, weir.Client]]:
    """Node 1 that leads all there is, a client of it, and a peer that may link."""
    (port,) = free_ports(1)
    founded = NodeFolder(folder).found(1, part=Part(1, (Member(1, "127.0.0.1", port),), SYSTEM))
    config = Config(
        node=NodeConfig(data=str(folder), port=port),
        log=LogConfig(segment_mib=32, spares=0),
        memory=MemoryConfig(budget_mib=66, cache_mib=0),
    )
    started: asyncio.Future[int] = asyncio.Future()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(config, lambda _, p: started.set_result(p), stop))
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    peer = HostileNode(await started)
    peer.brokerset = founded.brokerset
    try:
        async with weir.connect(f"weir://127.0.0.1:{port}", request_timeout=40) as client:
            await client.create_topic("t")
            await client.create_topic("o", order="total", partitions=2)
            assert (await client.publish("t", b"before")).offset == 0
            yield peer, client
            await client.publish("t", b"after")
            assert not task.done()
    finally:
        peer.end()
        stop.set()
        assert await task


def attack(
    folder: Path, body: Callable[[HostileNode, weir.Client], Coroutine[Any, Any, None]]
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(100), a_node(folder) as (peer, client):
            await body(peer, client)

    asyncio.run(whole())


def opened(*frames: Any) -> bytes:
    all_frames = (trunk.encode(TrunkKind.OPENED, 1, b"a"), *frames)
    return b"".join(bytes(buffer) for frame in all_frames for buffer in frame)


def of_device(number: int, content: Any) -> bytes:
    return opened(trunk.encode(TrunkKind.DEVICE, 1, pack((number, content))))


def arrival(publishes: Any, hello: Any = (0, 1, 1, 0, "t")) -> bytes:
    return opened(trunk.encode(TrunkKind.ARRIVALS, 0, pack(("a", [(1, hello, publishes)]))))


ASKED = {
    "principal": b"".join(trunk.encode(TrunkKind.OPENED, 1, b"\xff")),
    "no client frame": opened(trunk.encode(TrunkKind.CLIENT, 1, b"")),
    "cut client frame": opened(
        trunk.encode(TrunkKind.CLIENT, 1, CLIENT_HEADER.pack(2, 0, 2, 9, 1))
    ),
    "no request": opened(trunk.encode(TrunkKind.DEVICE, 1, b"\xc1")),
    "unknown request": of_device(99, []),
    "hello of texts": of_device(0, ["a", "b", "c", "d", 5]),
    "hello, hub": of_device(0, [0, -1, 0, 0, "t"]),
    "hello, boot": of_device(0, [0, 1, 1 << 32, 0, "t"]),
    "hello, partition": of_device(0, [0, 1, 1, 1 << 16, "t"]),
    "hello, sn": of_device(0, [256, 1, 1, 0, "t"]),
    "publishes of unequal columns": of_device(2, [[1, 2], [0], [b"x"], [0]]),
    "no publishes": of_device(2, [[], [], [], []]),
    "publishes, sequence": of_device(2, [[1], [1 << 40], [b"x"], [0]]),
    "publishes, code": of_device(2, [[1], [0], [b"x"], [1 << 20]]),
    "publishes, value": of_device(2, [[1], [0], [bytes(70_000)], [0]]),
    "pull": of_device(5, [1, 1 << 20, 1 << 40]),
    "ack": of_device(6, [1, 1 << 16, 1, 1, 1]),
    "arrivals of unequal columns": arrival([[1, 2], [0], [b"x"], [0]]),
    "arrivals, boot": arrival([[1], [0], [b"x"], [0]], (0, 1, 1 << 40, 0, "t")),
    "answers of who asks": opened(trunk.encode(TrunkKind.REPLIES, 1, b"x")),
    "unknown kind": b"\x63" + opened()[1:],
}


@pytest.mark.parametrize("what", ASKED)
def test_what_no_node_asks_ends_the_trunk_and_nothing_else(tmp_path: Path, what: str) -> None:
    async def body(peer: HostileNode, client: weir.Client) -> None:
        await peer.dial()
        peer.say(Lane.TRUNK, ASKED[what])
        await peer.until_cut()

    attack(tmp_path, body)


def reply(opcode: int, body: bytes, flags: int = 1, correlation: int = 0) -> bytes:
    head = CLIENT_HEADER.pack(CLIENT_VERSION, flags, opcode, len(body), correlation)
    return b"".join(trunk.encode(TrunkKind.REPLIES, OWN_SESSION, head + body))


ANSWERS = {
    "no reply": b"".join(trunk.encode(TrunkKind.REPLIES, OWN_SESSION, b"")),
    "half a reply": b"".join(trunk.encode(TrunkKind.REPLIES, OWN_SESSION, b"\x02\x01")),
    "flags": reply(m.opcode_of(m.Ping), pack([1]), flags=7),
    "unknown opcode": reply(999, pack([1])),
    "producer below 0": reply(m.opcode_of(m.OpenProducer), pack([-1, 1])),
    "producer": reply(m.opcode_of(m.OpenProducer), pack([(1 << 64) - 1, 1])),
    "epoch": reply(m.opcode_of(m.OpenProducer), pack([5, 1 << 40])),
    "barriers": reply(m.opcode_of(m.AskBarriers), pack([1, [(0, 1 << 63, 1)]])),
    "registry": reply(m.opcode_of(m.ReachRegistry), pack([1 << 63])),
    "refusal": reply(m.opcode_of(m.ReachRegistry), pack([1 << 20, "no"]), flags=3),
    "registry that nobody asked for": reply(m.opcode_of(m.Follow), pack([9, [7, [], [], 5]])),
    "reason": b"".join(trunk.encode(TrunkKind.HANGUP, 5, b"\xff")),
    "answers": b"".join(trunk.encode(TrunkKind.ANSWERS, 0, pack([("a", 5)]))),
    "requests of who answers": b"".join(trunk.encode(TrunkKind.OPENED, 5, b"a")),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_no_node_answers_ends_the_trunk_and_nothing_else(tmp_path: Path, what: str) -> None:
    async def body(peer: HostileNode, client: weir.Client) -> None:
        async with await peer.listen():
            await peer.dial()
            async with asyncio.timeout(40):
                writer = await peer.asked
                writer.write(ANSWERS[what])
                await writer.wait_closed()

    attack(tmp_path, body)


def appended(
    group: int, kind: Kind, *payloads: bytes, term: int = 50, prev: int = 0, behind: int = 60
) -> bytes:
    """Return what a leader of a higher term says: entries in front of `behind`, all committed.
    Those that are so already stay as they are.
    """
    entries = []
    for index in range(prev + 1, behind):
        data = payloads[index % len(payloads)]
        payload = Payload(kind, (data,), len(data))
        entries.append(raft.Entry(index, term, raft.EntryKind.NORMAL, payload, payload.size))
    prev_term = term if prev else 0
    message = raft.Append(TO, SENDER, term, prev, prev_term, tuple(entries), behind - 1)
    return b"".join(bytes(buffer) for buffer in pack_message(group, message))


def snapshot(group: int, data: bytes, term: int = 50) -> bytes:
    """Return a state as a leader of a higher term sends it."""
    configuration = raft.Configuration((TO, SENDER))
    meta = SnapshotMeta(10_000, term, configuration, 10_000, term, len(data))
    message = raft.InstallSnapshot(TO, SENDER, term, meta, 0, data, True, False)
    return b"".join(bytes(buffer) for buffer in pack_message(group, message))


def unreadable(group: int) -> bytes:
    """Return a batch of devices that is what was sent, and whose values cannot be told apart."""
    origins = Origins([1, 2], [1, 1], [0, 0], [0, 0])
    batch = encode([b"ab", b"cd"], group=group, producer=1, epoch=1, origins=origins)
    at = batch.index(bytes((2, 0, 0, 0, 4, 0, 0, 0)))
    batch[at] = 9
    return bytes(renumbered(batch, group, 1, 1, 0))


async def groups_of(client: weir.Client, topic: str) -> list[int]:
    return [address.group for address in (await client.describe(topic)).addresses]


def test_an_entry_that_cannot_be_applied_stops_one_replica_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(peer: HostileNode, client: weir.Client) -> None:
        first, second = await groups_of(client, "o")
        await peer.dial()
        peer.say(Lane.BULK, appended(second, Kind.BATCHES, unreadable(second)))
        async with asyncio.timeout(40):
            while f"the replica of group {second} has stopped" not in caplog.text:
                await asyncio.sleep(0.01)
        # Registry and other partitions go on; who leads this one is somebody else, for all we know.
        await client.create_topic("new")
        assert (await client.publish("new", b"x")).offset == 0
        assert peer.is_linked()
        assert f"the replica of group {first} has stopped" not in caplog.text

    attack(tmp_path, body)
    assert "a leader broke the rules, or this release of weir has a bug" in caplog.text


def test_what_a_replica_held_before_it_stopped_is_read_as_it_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(peer: HostileNode, client: weir.Client) -> None:
        await client.create_topic("p")
        await client.publish("p", b"kept")
        (group,) = await groups_of(client, "p")
        await peer.dial()
        peer.say(Lane.BULK, appended(group, Kind.BATCHES, unreadable(group)))
        async with asyncio.timeout(40):
            while "has stopped" not in caplog.text:
                await asyncio.sleep(0.01)
        async with client.reader("p", follow=False) as reader:
            found = [bytes(message.value) async for message in reader]
        assert found[:1] == [b"kept"]
        with pytest.raises(DamagedRange, match="can only be read"):
            await client.publish("p", b"more")

    attack(tmp_path, body)


LED = {
    "level": lambda _: appended(0, Kind.CONTROL, entries.encode_control(reg.LevelRaised(99))),
    "record": lambda _: appended(0, Kind.CONTROL, pack(["of a later release", 1])),
    "small state": lambda group: snapshot(group, b"no state"),
    "large state": lambda group: snapshot(group, bytes(2_000_000)),
    "state of a newer release": lambda group: snapshot(group, pack([99, [bytes(9)] * 200_000])),
    "stamp": lambda group: appended(
        group, Kind.CONTROL, entries.encode_control(part.StampsRaised((1 << 63) - 1))
    ),
}


@pytest.mark.parametrize("what", LED)
def test_what_no_leader_says_ends_the_link_and_nothing_else(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(peer: HostileNode, client: weir.Client) -> None:
        _, group = await groups_of(client, "o")
        await peer.dial()
        peer.say(Lane.BULK, LED[what](group))
        await peer.until_cut()
        await client.publish("o", b"x", key=b"a")

    attack(tmp_path, body)
    assert "has stopped" not in caplog.text
    if what in ("level", "record", "state of a newer release"):
        assert "upgrade this node" in caplog.text


NUMBERS = (0, 1, 2, 7, 255, 256, 65_536, 1 << 31, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1,
           1 << 63, (1 << 64) - 1, -1, -(1 << 63))  # fmt: skip
TEXTS = ("", "t", "o", "default/t", "a/b/c", "x" * 300, "\0")


class LeaderDice:
    """Draws what a leader of a higher term says, of any group but that of topic `t`: entries and
    states that are what they seem to be, and contradict what is there.
    """

    #: Deletes `t`, or cuts the peer off, as a leader may; or makes very many groups.
    LEFT_OUT = (
        reg.TopicDeleted, reg.TopicCreated, reg.TopicEnds, reg.TopicAltered,
        reg.NodeChanged, reg.NodeExpected, reg.NodeJoined, reg.SetJoined, reg.GroupsPlaced,
        reg.GroupsFollowed, reg.GroupsSettled, reg.SetPromoted,
    )  # fmt: skip

    def __init__(self, seed: int, groups: list[int]) -> None:
        self.random = random.Random(seed)
        self._groups = [0, *groups]
        self._term = 50
        self._behind = dict.fromkeys(self._groups, 40)

    def said(self) -> bytes:
        dice = self.random
        group = dice.choice(self._groups)
        self._term += dice.randrange(3)
        if dice.random() < 0.1:
            state = [dice.choice((5, 7, 8, 9, 10, 99)), *(self.drawn(int) for _ in range(14))]
            size = dice.choice((0, 0, 1 << 20))
            return snapshot(group, pack([*state, [bytes(9)] * (size // 9)]), self._term)
        kinds = [one for one in get_args(entries.ControlRecord) if one not in self.LEFT_OUT]
        kinds = [one for one in kinds if issubclass(one, entries._OF_REGISTRY) == (group == 0)]
        payloads = [entries.encode_control(self.drawn(dice.choice(kinds))) for _ in range(20)]
        prev = self._behind[group]
        behind = self._behind[group] = prev + 20
        # What was refused left a gap.
        fill = appended(group, Kind.NOOP, b"\0", term=self._term, behind=prev + 1)
        kind = Kind.CONTROL
        if group and dice.random() < 0.3:
            kind, payloads = Kind.BATCHES, [self._batch(group)]
        return fill + appended(group, kind, *payloads, term=self._term, prev=prev, behind=behind)

    def _batch(self, group: int) -> bytes:
        dice = self.random
        count = dice.randrange(1, 5)
        many = [[dice.choice((0, 1, 255, 0xFFFF_FFFF)) for _ in range(count)] for _ in range(3)]
        origins = Origins(*many, [dice.randrange(256) for _ in range(count)])
        values = [b"ab"] * count
        batch = encode(
            values, group=group, producer=1, epoch=1, origins=dice.choice((origins, None))
        )
        if dice.random() < 0.5:
            batch[dice.randrange(96, len(batch))] ^= 1 << dice.randrange(8)
        batch = renumbered(batch, group, dice.randrange(3), 1, dice.randrange(9))
        place = dice.choice(NUMBERS[:12]), dice.choice(NUMBERS[:11])
        return stamped(batch, *place) + bytes(batch[HEADER_SIZE:])

    def drawn(self, kind: Any) -> Any:
        """Draw a value of a type that a record's field has."""
        dice, of = self.random, get_args(kind)
        match get_origin(kind):
            case typing.Annotated:
                return abs(self.drawn(of[0])) % 65_536 if of[1].ge == 0 else self.drawn(of[0])
            case builtins.list:
                return [self.drawn(of[0]) for _ in range(dice.randrange(4))]
            case builtins.tuple if of[1:] == (...,):
                return tuple(self.drawn(of[0]) for _ in range(dice.randrange(4)))
            case builtins.tuple:
                return tuple(map(self.drawn, of))
            case typing.Literal:
                return dice.choice(of)
        if of:
            return self.drawn(dice.choice(of))
        if kind is int:
            return dice.choice((dice.randrange(9), dice.randrange(70), *NUMBERS[:12]))
        if kind is Mode:
            return dice.choice(list(Mode))
        if kind is bytes:
            return dice.randbytes(dice.randrange(40))
        if issubclass(kind, msgspec.Struct):
            hints = typing.get_type_hints(kind, include_extras=True)
            return kind(*(self.drawn(hints[name]) for name in kind.__struct_fields__))
        return dice.choice(("a", "b")) if kind is str else kind and bool(dice.randrange(2))


# The stranger drops connections that nodes have ended, without a word.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_random_words_of_a_leader_of_a_higher_term_break_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it makes a replica apply, the node goes on; also behind a start."""
    count = int(os.environ.get("WEIR_FUZZ", "3000")) // 10

    async def body(peer: HostileNode, client: weir.Client) -> None:
        dice = LeaderDice(int(os.environ.get("WEIR_FUZZ_SEED", "1")), await groups_of(client, "o"))
        for at in range(count):
            while not peer.is_linked():
                # What was said before may end the link that is being made.
                with contextlib.suppress(AssertionError, OSError):
                    await peer.dial()
            peer.say(Lane.BULK, dice.said())
            if at % 10 == 9:
                await client.ping()
                await client.publish("t", b"between")

    attack(tmp_path, body)
    assert "sends here no more" in caplog.text, "nothing was refused"


class Dice:
    """Draws frames of both ends of a trunk: those of the golden tests, with fields changed."""

    def __init__(self, seed: int, addresses: list[Any]) -> None:
        self.random = random.Random(seed)
        self._addresses = [list(address) for address in addresses]
        frames = json.loads(GOLDEN.read_text(encoding="utf-8"))["frames"]
        self._frames = {
            side: [
                (one["opcode"], bytes.fromhex("".join(data for _, data, _ in one["fields"])))
                for one in frames
                if one["side"] == side and one["kind"] not in LEFT_OUT
            ]
            for side in ("request", "reply")
        }

    def asked(self) -> bytes:
        session = self.random.choice((1, 2))
        if self.random.random() < 0.2:
            body = pack((self.random.randrange(-1, 10), self.changed(self._of_device())))
            return b"".join(trunk.encode(TrunkKind.DEVICE, session, body))
        if self.random.random() < 0.05:
            kind = self.random.choice((TrunkKind.OPENED, TrunkKind.CLOSED))
            return b"".join(trunk.encode(kind, session, b"a" if kind == TrunkKind.OPENED else b""))
        return b"".join(trunk.encode(TrunkKind.CLIENT, session, self._client("request", 0)))

    def answered(self) -> bytes:
        if self.random.random() < 0.1:
            return b"".join(trunk.encode(TrunkKind.HANGUP, self.random.choice(NUMBERS[:14]), b"no"))
        if self.random.random() < 0.1:
            rows = self.changed([[1, device.encode_confirms([1], [0], [0], [5])], [2, b""]])
            return b"".join(trunk.encode(TrunkKind.ANSWERS, 0, pack(rows)))
        session = self.random.choice((OWN_SESSION, OWN_SESSION, 1, 2))
        flags = self.random.choice((1, 1, 1, 3, 0))
        return b"".join(trunk.encode(TrunkKind.REPLIES, session, self._client("reply", flags)))

    def _of_device(self) -> list[Any]:
        return self.random.choice((
            [0, 1, 1, 0, "t"], [1], [[1, 2], [0, 1], [b"x", b"y"], [0, 0]], [1, 2, 3],
            [1, 0, 30_000, "c", "t", 1], [1, 5, 100], [1, 0, 3, 0, 1], [1, 0, 3, 0, 1, 6],
            [1, 0, 3, 4],
        ))  # fmt: skip

    def _client(self, side: str, flags: int) -> bytes:
        opcode, frame = self.random.choice(self._frames[side])
        body = frame[CLIENT_HEADER.size :]
        with contextlib.suppress(msgspec.DecodeError):  # of what is no MessagePack, some bits
            body = pack(self.changed(msgspec.msgpack.decode(body)))
        if self.random.random() < 0.1 and body:
            at = self.random.randrange(len(body))
            body = body[:at] + bytes((body[at] ^ 1 << self.random.randrange(8),)) + body[at + 1 :]
        correlation = self.random.choice((0, 1, 2, 1 << 62))
        return CLIENT_HEADER.pack(CLIENT_VERSION, flags, opcode, len(body), correlation) + body

    def changed(self, value: Any) -> Any:
        dice = self.random
        match value:
            case [int(), int(), int(), int()] if dice.random() < 0.5:
                return dice.choice(self._addresses)
            case list():
                found = [self.changed(one) for one in value]
                return found[: dice.randrange(len(found) + 1)] if dice.random() < 0.03 else found
            case dict():
                return {key: self.changed(one) for key, one in value.items()}
            case _ if dice.random() < 0.6:
                return value
            case int():
                return dice.choice(NUMBERS)
            case str():
                return dice.choice(TEXTS)
        return dice.choice((value, 0, "", None, [], b""))


def test_random_frames_of_both_ends_of_trunks_break_no_node(tmp_path: Path) -> None:
    """WEIR_FUZZ gives more frames than the bounded run, WEIR_FUZZ_SEED others."""
    count = int(os.environ.get("WEIR_FUZZ", "3000"))

    async def body(peer: HostileNode, client: weir.Client) -> None:
        addresses = [
            *(await client.describe("t")).addresses,
            *(await client.describe("o")).addresses,
        ]
        dice = Dice(int(os.environ.get("WEIR_FUZZ_SEED", "1")), addresses)
        ended = 0
        async with await peer.listen():
            for at in range(count):
                if not peer.is_linked():
                    ended += 1
                    await peer.dial()
                    for session, name in ((1, b"anonymous"), (2, b"shard:2.0")):
                        hello = b"".join(encode_request(m.Hello("hostile"), 1))
                        peer.say(Lane.TRUNK, *trunk.encode(TrunkKind.OPENED, session, name))
                        peer.say(Lane.TRUNK, *trunk.encode(TrunkKind.CLIENT, session, hello))
                peer.say(Lane.TRUNK, dice.asked())
                if peer.asked.done() and not (writer := peer.asked.result()).is_closing():
                    writer.write(dice.answered())
                if at % 10 == 9:
                    await client.ping()
        assert ended > 5, "no frame was refused: there is no damage"

    attack(tmp_path, body)
