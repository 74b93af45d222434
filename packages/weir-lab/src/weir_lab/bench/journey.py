"""How many Python calls one request costs on three nodes, and how often they change file.

`weir bench journey` runs three simulated nodes whose disks and network are in memory and without
faults, and counts with `sys.setprofile` while one request is under way: from the moment at which
the leader gets the decoded request to the moment at which it sends the encoded answer, on all
nodes. A `lone` publish goes to a node that is alone. A sample in which a timer of a node went off
is thrown away, so heartbeats and ticks are not counted. Calls are the same on every machine, unlike
times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from types import CodeType, FrameType

import msgspec
from msgspec.structs import replace

import weir
import weir_raft
from weir.broker.api.settings import Replication, ShardSettings
from weir.broker.shard import Shard
from weir.client.producer.sender import LONE_WINDOW, ProducerOptions
from weir.errors import WeirError
from weir.model.batch_builder import encode
from weir.model.limits import MIB
from weir.model.topic import Order
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.storage.segment_files import Settings as LogSettings
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.network import Link, Way
from weir.testing.simulator.process import Machine, Process
from weir.testing.simulator.witness import led_by
from weir.testing.simulator.world import MS, SECOND, World

_ROOT = Path(weir.__file__).parent
_RAFT = Path(weir_raft.__file__).parent
#: Rooms of the broker that do no I/O; the packages `host` and `client` have keys of their own.
_PURE = frozenset({"broker", "raft", "order", "model", "codec", "storage", "protocol"})
_OWN_KEYS = ("host", "client")
#: Samples in which a timer goes off do not count: so many are tried for each.
_TRIES = 20
#: Long against a request, so that most samples see no timer.
_TICK = 200 * MS
_WITHIN = 30 * SECOND
_SYSTEM = 1
#: Of a flush, in virtual µs.
_FLUSH = (100, 200)
_PAUSE = 20 * MS
_PULL_WAIT_MS = 1_000
_BARRIER_WAIT_MS = 1_000
_VALUE = b"v" * 100
_CLUSTER = "journey"


#: The requests that are looked at, in the order in which `measure` returns them.
KINDS = ("publish", "pull", "ack", "barrier", "lone")


class Settings(msgspec.Struct, frozen=True):
    """How many requests of each kind are counted, and how many are made before; the topic of the
    barriers has so many partitions.
    """

    samples: int = 20
    warm: int = 8
    partitions: int = 6
    nodes: int = 3
    seed: int = 0


class Journey(msgspec.Struct, frozen=True):
    """What one request costs: medians over `samples` requests.

    `calls` are calls of functions in the broker's pure rooms, `files` the distinct files of those,
    `changes` the calls whose caller stands in another file, `package_changes` those whose caller
    stands in another package. `host_calls` and `client_calls` are calls of functions of `weir.host`
    and `weir.client`, which the others leave out.
    """

    calls: float
    files: float
    changes: float
    package_changes: float
    host_calls: float
    client_calls: float
    samples: int


class _Counter:
    """Counts calls while a request is under way."""

    def __init__(self, link: Link) -> None:
        self.link = link
        #: Whether the leader has the request, and whether it has sent its answer.
        self.began = self.ended = False
        #: Whether a timer went off meanwhile.
        self.ticked = False
        self.calls = self.changes = self.package_changes = 0
        self.own = dict.fromkeys(_OWN_KEYS, 0)
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Be told of a call; see `sys.setprofile`."""
        if event != "call" or self.ended:
            return
        code = frame.f_code
        if code is _TICKS:
            self.ticked = True
        elif code is _SENDS and frame.f_locals["self"] is self.link:
            self.ended = True
            return
        elif code in _TAKES:
            self.began = True
        if not self.began:
            return
        room = _room_of(code)
        if room in self.own:
            self.own[room] += 1
        elif room in _PURE:
            self._count(frame, code.co_filename)

    def _count(self, frame: FrameType, file: str) -> None:
        self.calls += 1
        self.files.add(file)
        before = frame.f_back
        whence = "" if before is None else before.f_code.co_filename
        if whence != file:
            self.changes += 1
            self.package_changes += whence.rpartition("/")[0] != file.rpartition("/")[0]


_TICKS: CodeType = Process.tick.__code__
_SENDS: CodeType = Link.to_client.__code__
_TAKES: frozenset[CodeType] = frozenset({Shard.handle.__code__, Shard.step.__code__})
_rooms: dict[CodeType, str] = {}


def _room_of(code: CodeType) -> str:
    """Return the package of weir that a function belongs to; empty for what is not weir's."""
    room = _rooms.get(code)
    if room is None:
        path = Path(code.co_filename)
        inside = path.is_relative_to(_ROOT)
        room = path.relative_to(_ROOT).parts[0] if inside else ""
        room = _rooms[code] = "raft" if path.is_relative_to(_RAFT) else room
    return room


class _Caller:
    """A connection to one process, over which one request at a time is made."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._stream = ClientStream()
        self._arrived: list[bytes] = []
        self._correlation = 0
        self.link = process.sockets.connect(self, Way(), Way())
        self.ask(m.Hello("journey"))

    def received(self, link: Link, data: bytes) -> None:
        """Keep bytes; they are decoded where nothing is counted."""
        self._arrived.append(data)

    def lost(self, link: Link) -> None:
        """Nothing breaks a connection here."""
        raise WeirError("a connection of `weir bench journey` broke: this is a bug of weir")

    def ask(self, request: m.Request, counter: _Counter | None = None) -> m.Reply:
        """Return the answer to a request. Raises `WeirError` if there is none in 30 virtual s."""
        self._correlation += 1
        data = b"".join(encode_request(request, self._correlation))
        self.link.to_host(data)
        until = self._world.now + _WITHIN
        found: list[m.Reply] = []
        while not found and self._world.now < until:
            sys.setprofile(counter)
            try:
                self._world.run(until, lambda: bool(self._arrived))
            finally:
                sys.setprofile(None)
            arrived, self._arrived = self._arrived, []
            for part in arrived:
                found += [decode_reply(frame) for frame in self._stream.receive(part)]
        if not found:
            raise WeirError(f"no answer to {type(request).__name__}: this is a bug of weir")
        return found[0]


class _EvenDice(Random):
    """Dice by which no bytes are cut up."""

    def random(self) -> float:
        return 0.5


class _EvenWorld(World):
    """A world in which all connections are equally quick, so that no follower is behind others."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = _EvenDice(seed)

    def between(self, least: int, most: int) -> int:
        return least

    def chance(self, probability: float) -> bool:
        return False


class Journeys:
    """Three simulated nodes, and what one request of each kind costs on them."""

    def __init__(self, settings: Settings) -> None:
        """Start the nodes and make the topics. Raises `WeirError` if that fails."""
        self._settings = settings
        self._world = world = _EvenWorld(settings.seed)
        beats = Replication(heartbeat_ms=_TICK // MS, election_ms=10 * _TICK // MS)
        shard = ShardSettings(replication=beats, random=Random(settings.seed).random)
        log = LogSettings(0, _SYSTEM, segment_bytes=4 * MIB, entry_bytes_max=MIB, spares=0)
        self._nodes = BrokerSet(world, Machine(log, shard, _FLUSH, tick=_TICK), settings.nodes)
        self._nodes.start()
        self._wait(lambda: len(self._nodes.running) == settings.nodes)
        self._wait(lambda: all(process.ready for process in self._nodes.running))
        self._any = _Caller(world, self._nodes.running[0])
        self._address = self._create("lone", 1, "partition").addresses[0]
        self._total = self._create("total", settings.partitions, "total")
        # The client connects to the partition's leader, which decodes and decides the request.
        self._wait(lambda: len(self._leaders()) == 1)
        self._leader = _Caller(world, self._leaders()[0])
        # As the client asks: `publish` without a producer, or a producer as it is by default.
        window = LONE_WINDOW if settings.nodes == 1 else ProducerOptions().window
        grant = self._leader.ask(m.OpenProducer(window=window))
        assert isinstance(grant, m.ProducerGrant), grant
        self._producer, self._epoch, self._sequence = grant.producer, grant.epoch, 0

    def publish(self) -> Journey:
        """A batch of one message of 100 bytes, to its confirm."""
        return self._measure(self._publish, self._leader.link)

    def pull(self) -> Journey:
        """A pull of one message that is there, to its grant."""

        def pull(counter: _Counter | None) -> None:
            self._publish(None)
            self._pull(counter)

        return self._measure(pull, self._leader.link)

    def ack(self) -> Journey:
        """The ack of one message, to its confirm."""

        def ack(counter: _Counter | None) -> None:
            self._publish(None)
            granted = self._pull(None)
            ranges = [(granted.fence, granted.offset, granted.next_offset)]
            request = m.Ack(self._address, _CLUSTER, ranges, exact=True)
            reply = self._leader.ask(request, counter)
            assert isinstance(reply, m.Acked), reply

        return self._measure(ack, self._leader.link)

    def barrier(self) -> Journey:
        """A question for the barriers of six partitions on three nodes, to its answer."""

        def ask(counter: _Counter | None) -> None:
            reply = self._any.ask(m.AskBarriers(self._total.id, 0, _BARRIER_WAIT_MS), counter)
            assert isinstance(reply, m.Barriers), reply
            assert reply.reached, reply

        return self._measure(ask, self._any.link)

    # -- requests -----------------------------------------------------------------------------

    def _create(self, name: str, partitions: int, order: Order) -> m.TopicInfo:
        until = self._world.now + _WITHIN
        while True:  # until the registry has a leader
            reply = self._any.ask(m.CreateTopic(name, partitions, order=order))
            if isinstance(reply, m.TopicInfo):
                return reply
            if self._world.now > until:
                raise WeirError(f"topic {name} could not be made: {reply}")
            self._world.run(self._world.now + _TICK)

    def _publish(self, counter: _Counter | None) -> None:
        batch = encode(
            [_VALUE],
            group=self._address.group,
            producer=self._producer,
            epoch=self._epoch,
            sequence=self._sequence,
        )
        self._sequence += 1
        reply = self._leader.ask(m.Produce(self._address, 0, memoryview(batch)), counter)
        assert isinstance(reply, m.Confirm), reply

    def _pull(self, counter: _Counter | None) -> m.Granted:
        reply = self._leader.ask(m.Pull(self._address, _CLUSTER, 1, MIB, _PULL_WAIT_MS), counter)
        assert isinstance(reply, m.Granted), reply
        assert reply.fence, reply
        return reply

    # -- inside -------------------------------------------------------------------------------

    def _measure(self, ask: Callable[[_Counter | None], None], link: Link) -> Journey:
        for _ in range(self._settings.warm):
            ask(None)
        found: list[_Counter] = []
        for _ in range(_TRIES * self._settings.samples):
            self._world.run(self._world.now + _PAUSE)  # what follows an answer is not the next's
            counter = _Counter(link)
            ask(counter)
            if not counter.ticked:
                found.append(counter)
            if len(found) == self._settings.samples:
                return _median_of(found)
        raise WeirError("timers go off in too many samples: this is a bug of weir")

    def _leaders(self) -> list[Process]:
        return [one for one in self._nodes.running if self._address.group in led_by(one)]

    def _wait(self, until: Callable[[], bool]) -> None:
        self._world.run(self._world.now + _WITHIN, until)
        if not until():
            raise WeirError("three simulated nodes did not come up: this is a bug of weir")


def measure(settings: Settings) -> list[Journey]:
    """Return what a request of each of `KINDS` costs. Raises `WeirError`."""
    one = Journeys(settings)
    lone = Journeys(replace(settings, nodes=1))
    return [one.publish(), one.pull(), one.ack(), one.barrier(), lone.publish()]


def figures(found: Sequence[Journey]) -> dict[str, float]:
    """Return all figures by name, as in `publish_calls`."""
    return {
        f"{kind}_{figure}": value
        for kind, journey in zip(KINDS, found, strict=True)
        for figure, value in msgspec.structs.asdict(journey).items()
    }


def _median_of(found: list[_Counter]) -> Journey:
    return Journey(
        median(one.calls for one in found),
        median(len(one.files) for one in found),
        median(one.changes for one in found),
        median(one.package_changes for one in found),
        median(one.own["host"] for one in found),
        median(one.own["client"] for one in found),
        len(found),
    )
