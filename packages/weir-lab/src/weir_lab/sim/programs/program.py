"""Simulated client programs: how one stays connected and finds its topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.errors import BadBatch, NotLeader, TopicExists
from weir.model.batch import Batch, Header, split
from weir.model.ids import Address
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS, SECOND
from weir_lab.sim.history import Operation, Seen
from weir_lab.sim.programs.scene import Scene

TOPIC = "weather"
_RECONNECT = (1 * MS, 60 * MS)
#: While nobody can be reached.
_DIAL = (10 * MS, 100 * MS)
_PAUSE = (1 * MS, 20 * MS)

#: In a run that takes its time: how likely a pause is a long one.
_REST = 0.15
_REST_MAX = 2 * SECOND
#: How likely a client goes to the node that is said to lead, rather than ask again.
_FOLLOW = 0.3

Answer = Callable[[m.Reply], None]
#: Offsets [first, next).
Run = tuple[int, int]


class Program:
    """A program that dials again whenever its connection is gone, in either dialect."""

    def __init__(self, scene: Scene, name: str) -> None:
        """Be called `name` in the trace; `start` begins."""
        self.scene = scene
        self.world = scene.world
        self.history = scene.history
        self.name = name
        #: Where it runs: some ways may be closed to it that are open to others.
        self.site = scene.a_site()
        #: Set when the program is to finish what it has begun, and begin nothing new.
        self.ending = False
        #: Set when the program is over: it dials no more.
        self.retired = False
        self.link: Link | None = None
        #: How many times longer than others it waits for an answer.
        self.patience = 1
        #: The node that it is to dial next; 0 for any.
        self._next_node = 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be done; only asked of one that is `ending`."""
        return True

    def retire(self) -> None:
        """Be over: drop the connection and dial no more."""
        self.retired = True
        link, self.link = self.link, None
        self.closed()
        if link is not None:
            link.cut(self)

    def start(self) -> None:
        """Dial until somebody answers."""
        if self.retired:
            return
        self.link = self.scene.brokers.connect(self, self.site, self._next_node)
        self._next_node = 0
        if self.link is None:
            self.world.after(self.world.between(*_DIAL), self.start)
        else:
            self.opened()

    def lost(self, link: Link) -> None:
        """The connection is gone: dial again."""
        if link is self.link:
            self.link = None
            self.closed()
            self.world.after(self.world.between(*_RECONNECT), self.start)

    def soon(self, do: Callable[..., None], *arguments: object) -> None:
        """Call something after a pause."""
        slower = 1 if self.ending else self.scene.pace[0]
        self.world.after(self.world.between(*_PAUSE) * slower, do, *arguments)

    def retry(self, do: Callable[[], None]) -> None:
        """Call something after a pause, unless the connection is gone by then: the next one begins
        by itself.
        """
        self.soon(self._do_on, self.link, do)

    def _do_on(self, link: Link | None, do: Callable[[], None]) -> None:
        if link is self.link:
            do()

    def rhythm(self, span: tuple[int, int]) -> int:
        """Draw a pause between two pieces of work, and now and then a rest; in the end, hurry."""
        usual, rest = self.scene.pace
        if rest == 1 or self.ending:
            return self.world.between(*span)
        slower = rest if self.world.chance(_REST) else usual
        return min(self.world.between(*span) * slower, _REST_MAX)

    def expect(self, waits: Callable[[], bool]) -> None:
        """Hang up and dial another node if this still waits for an answer after a while."""
        if self.scene.patience:
            patience = self.scene.patience * self.patience
            self.world.after(patience, self._look_up, self.link, waits)

    def _look_up(self, link: Link | None, waits: Callable[[], bool]) -> None:
        if link is not None and link is self.link and waits():
            link.cut(self)

    def opened(self) -> None:
        """Begin a new connection."""

    def closed(self) -> None:
        """Take note that what was asked may or may not have happened."""

    def received(self, link: Link, data: bytes) -> None:
        """Take bytes of the broker."""


class Client(Program):
    """A program of the client dialect: hello, find the topic, then `ready`."""

    def __init__(self, scene: Scene, name: str) -> None:
        """Use the topic that most programs of this world share, and create it if need be."""
        super().__init__(scene, name)
        self.addresses: list[Address] = []
        self._stream = ClientStream()
        self._asked: dict[int, tuple[Operation, Answer]] = {}
        self._correlation = 0

    def opened(self) -> None:
        """Say hello; then ask for the topic."""
        self._stream = ClientStream()
        self.ask(m.Hello(self.name), self._greeted)

    def closed(self) -> None:
        """Count every open question as ended: nobody will answer it."""
        asked, self._asked = self._asked, {}
        for operation, _ in asked.values():
            operation.ended = self.world.now

    def ask(self, request: m.Request, then: Answer) -> Operation | None:
        """Send a request; None if there is no connection. `then` gets the reply if one comes."""
        if self.link is None:
            return None
        self._correlation += 1
        what = f"{self.name}: {type(request).__name__}"
        operation = self.history.begin(what, self.world.now)
        self._asked[self._correlation] = (operation, then)
        self.expect(lambda: operation.ended < 0)
        self.link.to_host(b"".join(encode_request(request, self._correlation)))
        return operation

    def received(self, link: Link, data: bytes) -> None:
        """Give each reply to its waiter."""
        if link is not self.link:
            return
        for frame in self._stream.receive(data):
            asked = self._asked.pop(frame.correlation, None)
            if asked is None:
                self.complain("Honest", f"an answer to {frame.correlation}, which was not asked")
                continue
            operation, then = asked
            operation.ended = self.world.now
            reply = decode_reply(frame)
            self.world.note(self.name, type(reply).__name__, getattr(reply, "code", 0))
            then(reply)
            if isinstance(reply, m.Refusal) and reply.code == NotLeader.code:
                self._follow(reply.detail)

    def _follow(self, leader: int) -> None:
        """Go to the node that leads, or ask again here."""
        if leader and self.link is not None and self.world.chance(_FOLLOW):
            self._next_node = leader
            self.link.cut(self)

    def complain(self, promise: str, what: str) -> None:
        """Note a broken promise."""
        self.history.complaints.append((promise, f"{self.name}: {what}"))

    def check(
        self,
        partition: int,
        batches: tuple[object, ...],
        first: int,
        voids: Sequence[Run] = (),
        runs: Sequence[Run] = (),
    ) -> list[Batch]:
        """Verify delivered bytes and note them. They come in whole entries that cover `first`, but
        for what is void; of what is scattered and not in a grant of `runs`, nobody takes notice.
        """
        self.history.leave_out(partition, voids)
        group = self.addresses[partition].group
        found: list[Batch] = []
        try:
            for payload in batches:
                assert isinstance(payload, bytes | bytearray | memoryview)
                found += split(payload, group)
        except BadBatch as error:
            self.complain("Honest", f"bytes that were never sent: {error}")
            return []
        behind = min(first, found[0].header.first_offset) if found else first
        for batch in found:
            header = batch.header
            behind = past(voids, behind)
            # What was aborted between the runs of a grant is left out.
            is_granted = not runs or any(a < header.first_offset and behind < b for a, b in runs)
            if header.first_offset != behind and is_granted:
                text = f"{header.first_offset} follows {behind}"
                self.complain("Honest", f"asked for {first}: in the answer {text}")
            behind = header.next_offset
            if batch.piece is not None:
                self.complain("Honest", f"a chunk was shown as {header.first_offset}")
            if batch.scattered is not None and runs and not _meets(runs, header):
                continue
            values = tuple(batch.values())
            self.history.seen.append(Seen(partition, header.first_offset, values, header.stamp))
        if found and behind <= first:
            self.complain("Honest", f"asked for {first}, the answer ends at {behind}")
        return found

    def ready(self) -> None:
        """The topic is known: begin, or go on."""

    def _greeted(self, reply: m.Reply) -> None:
        if self.addresses:
            self.ready()
        else:
            self._create()

    def _create(self) -> None:
        keep = SettingsChange(retention_bytes=self.history.retention_bytes)
        self.ask(
            m.CreateTopic(TOPIC, self.scene.partitions, self.scene.order, settings=keep),
            self._created,
        )

    def _created(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)
            self.ready()
        elif isinstance(reply, m.Refusal) and reply.code == TopicExists.code:
            self.ask(m.DescribeTopic(TOPIC), self._created)  # it has grown
        else:
            self.retry(self._create)


def past(voids: Sequence[Run], offset: int) -> int:
    """Return the first offset from `offset` on that is not in these runs, which rise."""
    for first, behind in voids:
        if first <= offset < behind:
            offset = behind
    return offset


def _meets(runs: Sequence[Run], header: Header) -> bool:
    return any(a < header.next_offset and header.first_offset < b for a, b in runs)
