"""A small broker on loopback that a test can tell to misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from weir.errors import UnknownOpcode
from weir.model.batch import HEADER_SIZE, Batch, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of, partition_of, producer_of, topic_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_request, encode_reply
from weir.protocol.frame import ClientFrame

#: What a script makes of a request: refuse it, "cut" the connection before or "cut after" it is
#: served, or None: serve it.
Script = Callable[[m.Request], "m.Refusal | str | None"]

_SETTLING = (
    m.Ack, m.Nack, m.Extend, m.MoveGrants, m.Withdraw, m.TakeTurn, m.MoveCursor
)  # fmt: skip


class FakeBroker:
    """Keeps batches as they come, stamps them, dedupes, grants in offset order to anybody."""

    def __init__(self) -> None:
        self.script: Script = lambda _: None
        self.seen: list[m.Request] = []
        self.topics: dict[str, m.TopicInfo] = {}
        self.logs: dict[int, list[Batch]] = {}
        self.starts: dict[int, int] = {}
        #: By group, producer and epoch.
        self.answers: dict[tuple[int, int, int], dict[int, tuple[int, m.Confirm]]] = {}
        self.next_sequence: dict[tuple[int, int, int], int] = {}
        self.epochs: dict[int, int] = {}
        #: By fencing number of a grant, the one that it has once it is moved.
        self.moved: dict[int, int] = {}
        #: Chunks of large values by the index of their entry.
        self.chunks: dict[int, Batch] = {}
        self.acked: dict[int, list[tuple[int, int, int]]] = {}
        self.granted: dict[int, int] = {}
        #: By cluster that reads in total order, how many turns there were, and below what by
        #: partition all is done.
        self.cursors: dict[str, tuple[int, tuple[int, ...]]] = {}
        #: By group, the barrier that its leader keeps to, though more is published; by topic, how
        #: many partitions belong to its order, if not all, and the floors of those that joined.
        self.stalled: dict[int, tuple[int, int]] = {}
        self.members: dict[int, int] = {}
        self.floors: dict[int, list[tuple[int, int]]] = {}
        #: By topic, those that have ended, as `Barriers` names them.
        self.ends: dict[int, list[tuple[int, int, int]]] = {}
        #: Whether it is of a release with marks; and who awaits one.
        self.knows_marks = False
        self.parked: list[tuple[ClientFrame, asyncio.StreamWriter]] = []
        #: What was given back; it is granted to nobody again.
        self.returned: list[m.Nack] = []
        self.producers = self.stamp = 0
        #: Of the producer ids that were granted, which windows were asked for.
        self.windows: list[int] = []
        self.wall_ms = 1_700_000_000_000
        #: The stamp of grants, and by how much it is ahead of the time.
        self.granted_at = 0, 0
        self.port = 0
        #: Whether it has met its set.
        self.met = True
        self.writers: set[asyncio.StreamWriter] = set()
        self.server: asyncio.Server | None = None
        self.news = asyncio.Condition()
        #: Whether pulls that are withdrawn end, as if nothing was being granted to them; and by
        #: connection and group, how often they were.
        self.lets_withdraw = False
        self.withdrawn: Counter[tuple[asyncio.StreamWriter, int]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut everybody off; what is in the logs stays."""
        assert self.server is not None
        self.server.close()
        self.cut()
        await asyncio.sleep(0)

    async def end(self) -> None:
        await self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"weir://127.0.0.1:{self.port}"

    def topic(self, name: str, partitions: int = 1) -> m.TopicInfo:
        number = len(self.topics) + 1
        addresses = [Address(0, 0, group_of(number, p)) for p in range(partitions)]
        self.topics[name] = m.TopicInfo(number, "default", name, "partition", addresses)
        for address in addresses:
            self.logs[address.group] = []
        return self.topics[name]

    def end_of(self, group: int) -> int:
        log = self.logs[group]
        return log[-1].header.next_offset if log else 0

    def barrier(self, group: int) -> tuple[int, int]:
        """Stamps are given in turn, so that all up to the last one is there."""
        return self.stalled.get(group) or (self.stamp, self.end_of(group))

    def tell_mark(
        self, stamp: int, throughs: list[tuple[int, int]], partitions: int = 2, ended: int = 0
    ) -> None:
        """Tell those who await a mark."""
        parked, self.parked = self.parked, []
        for frame, writer in parked:
            topic = decode_request(frame).topic
            self.reply(m.OrderMark(topic, stamp, partitions, throughs, ended, True), frame, writer)

    def _await_mark(self, frame: ClientFrame, writer: asyncio.StreamWriter) -> None:
        if self.knows_marks:
            self.parked.append((frame, writer))
        else:
            unknown = m.Refusal(UnknownOpcode.code, "opcode 95 is not known here", 95)
            self.reply(unknown, frame, writer)

    def values(self, name: str, partition: int = 0) -> list[bytes]:
        group = self.topics[name].addresses[partition].group
        return [value for batch in self.logs[group] for value in batch.values()]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        stream = ClientStream()
        try:
            while data := await reader.read(1 << 16):
                for frame in stream.receive(data):
                    if not await self._take(frame, writer):
                        writer.transport.abort()
                        return
        except ConnectionError:
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _take(self, frame: ClientFrame, writer: asyncio.StreamWriter) -> bool:
        request = decode_request(frame)
        self.seen.append(request)
        order = self.script(request)
        if order == "cut":
            return False
        if isinstance(order, m.Refusal):
            self.reply(order, frame, writer)
        elif isinstance(request, m.OpenCluster):
            self.reply(m.ClusterIsOpen(), frame, writer)
        elif isinstance(request, m.AwaitMark):
            self._await_mark(frame, writer)
        elif isinstance(request, m.Fetch | m.Pull):
            task = asyncio.ensure_future(self._wait_for_data(request, frame, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            if isinstance(request, m.Withdraw) and self.lets_withdraw:
                await self._withdraw(writer, request.address.group)
            reply = await self.answer(request)
            if order == "cut after":
                return False
            self.reply(reply, frame, writer)
        return True

    @staticmethod
    def reply(reply: m.Reply, frame: ClientFrame, writer: asyncio.StreamWriter) -> None:
        writer.writelines(encode_reply(reply, frame.opcode, frame.correlation))

    async def answer(self, request: m.Request) -> m.Reply:
        if isinstance(request, m.Hello):
            return m.Welcome(77, 1, 1, 0, 1 << 20, 64, met=self.met)
        if isinstance(request, m.Ping):
            return m.Pong(self.wall_ms)
        if isinstance(request, m.DescribeTopic | a.AskLeader):
            return self._describe(request)
        if isinstance(request, m.CreateTopic):
            return self.topics.get(request.name) or self.topic(request.name, request.partitions)
        if isinstance(request, m.ListTopics):
            return m.TopicList([*self.topics.values()])
        if isinstance(request, m.OpenProducer):
            return self._grant(request.producer, request.window)
        if isinstance(request, m.Positions | a.ListClusters):
            return self._tell_extent(request)
        if isinstance(request, m.AskBarriers):
            (info,) = [one for one in self.topics.values() if one.id == request.topic]
            groups = [a.group for a in info.addresses[: self.members.get(info.id)]]
            told = [(p, *self.barrier(group)) for p, group in enumerate(groups)]
            reached = all(stamp >= max(request.stamp, 1) for _, stamp, _ in told)
            floors, ends = self.floors.get(info.id, ()), self.ends.get(info.id, ())
            return m.Barriers(info.id, told, tuple(floors), reached, tuple(ends))
        if isinstance(request, _SETTLING):
            return self._settle(request)
        if isinstance(request, m.FetchChunks):
            found = self.chunks[request.index]  # one at a time, however many are asked for
            return m.FetchedChunks(request.address, request.index, (found.view,))
        assert isinstance(request, m.Produce)
        reply = await self.produce(request)
        if request.level == m.Level.RECEIVED and isinstance(reply, m.Confirm):
            return m.Confirm(-1, reply.stamp, reply.duplicate)
        return reply

    def _describe(self, request: m.DescribeTopic | a.AskLeader) -> m.Reply:
        if isinstance(request, m.DescribeTopic):
            return self.topics.get(request.name) or m.Refusal(4, f"no topic {request.name}")
        is_known = request.address.group in self.logs
        return a.LeaderInfo(1, 1) if is_known else m.Refusal(4, "no topic has this partition")

    def _tell_extent(self, request: m.Positions | a.ListClusters) -> m.Reply:
        group = request.address.group
        start, end = self.starts.get(group, 0), self.end_of(group)
        if isinstance(request, m.Positions):
            return m.PositionsReply(start, end, start)
        return a.ClusterList(start, end, [])

    def _grant(self, producer: int, window: int) -> m.ProducerGrant:
        if not producer:
            self.producers += 1
            self.windows.append(window)
            return m.ProducerGrant(producer_of(1_000 + self.producers, window), 0)
        epoch = self.epochs[producer] = self.epochs.get(producer, 0) + 1
        return m.ProducerGrant(producer, epoch)

    def _settle(
        self,
        request: m.Ack | m.Nack | m.Extend | m.MoveGrants | m.Withdraw | m.TakeTurn | m.MoveCursor,
    ) -> m.Reply:
        if isinstance(request, m.MoveGrants):
            fences = [one for one in request.fences if one in self.moved]
            return m.GrantsMoved(tuple((one, self.moved[one]) for one in fences))
        if isinstance(request, m.TakeTurn | m.MoveCursor):
            return self._turn(request)
        if isinstance(request, m.Withdraw):
            return m.Withdrawn()
        if isinstance(request, m.Extend):
            return m.Extended(1 << 40)
        if isinstance(request, m.Nack):
            self.returned.append(request)
            return m.Nacked(0)
        self.acked.setdefault(request.address.group, []).extend(request.ranges)
        return m.Acked(request.ranges[-1][2])

    def _turn(self, request: m.TakeTurn | m.MoveCursor) -> m.Reply:
        fence, offsets = self.cursors.get(request.cluster, (0, tuple(request.offsets)))
        if isinstance(request, m.TakeTurn):
            self.cursors[request.cluster] = fence + 1, offsets
            return m.Turn(fence + 1, 1 << 60, offsets, 1)
        assert request.fence == fence
        self.cursors[request.cluster] = fence, tuple(map(max, offsets, request.offsets))
        return m.Moved(1 << 60)

    async def produce(self, request: m.Produce) -> m.Reply:
        group = request.address.group
        header = Batch(request.batch).check(group).header
        sender = (group, header.producer, header.epoch)
        answers = self.answers.setdefault(sender, {})
        if header.sequence in answers:
            kept, confirm = answers[header.sequence]
            if kept != header.hash:
                return m.Refusal(10, "other bytes under this sequence")
            return m.Confirm(confirm.offset, confirm.stamp, True, confirm.index)
        expected = self.next_sequence.get(sender, 0)
        if header.sequence != expected:
            return m.Refusal(9, "a gap", expected)
        self.stamp = max(self.stamp, request.seen) + 1
        offset = self.end_of(group)
        head = stamped(request.batch, self.stamp, offset)
        stored = Batch(head + bytes(request.batch[HEADER_SIZE:]))
        self.next_sequence[sender] = header.sequence + header.count
        if stored.piece is not None:
            index = max(self.chunks, default=6) + 1
            self.chunks[index] = stored
            answers[header.sequence] = (header.hash, m.Confirm(-1, self.stamp, index=index))
            return answers[header.sequence][1]
        self.logs[group].append(stored)
        answers[header.sequence] = (header.hash, m.Confirm(offset, self.stamp))
        async with self.news:
            self.news.notify_all()
        return answers[header.sequence][1]

    async def publish_at_once(
        self, name: str, values: Mapping[int, Sequence[Sequence[bytes]]]
    ) -> int:
        """Publish, by partition, batches of these values, all at one stamp; return that."""
        self.stamp += 1
        for partition, batches in values.items():
            group = self.topics[name].addresses[partition].group
            for batch in batches:
                view = encode(batch, group=group)
                head = stamped(view, self.stamp, self.end_of(group))
                self.logs[group].append(Batch(head + bytes(view[HEADER_SIZE:])))
        async with self.news:
            self.news.notify_all()
        return self.stamp

    async def _withdraw(self, writer: asyncio.StreamWriter, group: int) -> None:
        """Answer the pulls that wait on this connection, and those on no other one."""
        self.withdrawn[writer, group] += 1
        async with self.news:
            self.news.notify_all()

    async def _wait_for_data(
        self, request: m.Fetch | m.Pull, frame: ClientFrame, writer: asyncio.StreamWriter
    ) -> None:
        group = request.address.group
        offset = request.offset if isinstance(request, m.Fetch) else self.granted.get(group, 0)
        if offset < self.starts.get(group, 0):
            self.reply(m.Refusal(18, "gone", self.starts[group]), frame, writer)
            return
        known = self.withdrawn[writer, group]

        def is_over() -> bool:
            withdrawn = isinstance(request, m.Pull) and self.withdrawn[writer, group] > known
            return withdrawn or self.end_of(group) > offset

        try:
            async with asyncio.timeout(request.wait_ms / 1_000), self.news:
                await self.news.wait_for(is_over)
        except TimeoutError:
            batches: list[Batch] = []
        else:
            batches = [b for b in self.logs[group] if b.header.next_offset > offset][:3]
        views = tuple(batch.view for batch in batches)
        behind = batches[-1].header.next_offset if batches else offset
        if isinstance(request, m.Fetch):
            stamp, through = self.barrier(group)
            count = self.members.get(topic_of(group), 0) if not partition_of(group) else 0
            barrier = stamp if through == self.end_of(group) else 0
            follows = next((b for b in self.logs[group] if b.header.first_offset == behind), None)
            is_cut = bool(batches and follows and follows.header.stamp == batches[-1].header.stamp)
            fetched = m.Fetched(
                request.address, offset, behind, self.end_of(group), views, barrier, count,
                is_cut=is_cut,
            )  # fmt: skip
            self.reply(fetched, frame, writer)
            return
        self.granted[group] = behind
        stamp, ahead_ms = self.granted_at
        granted = m.Granted(
            request.address, (offset + 1) * bool(views), 1 << 40, offset, behind, 1, stamp,
            batches=views, ahead_ms=ahead_ms,
        )  # fmt: skip
        self.reply(granted, frame, writer)
