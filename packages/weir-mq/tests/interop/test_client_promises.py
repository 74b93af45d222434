"""What the shipped client promises of one order, turns and scatterings, on real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import weir
from weir.client.client import Client
from weir.errors import Disconnected
from weir.testing.nodes import NodeSet, Patient, running_node

PARTITIONS = 6
PUBLISHERS = 4
#: Reads that are cut while others publish.
READS = 40
AT_ONCE = 3
BEHIND_LATEST = 60
MESSAGES = 200


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeSet]:
    found = NodeSet(tmp_path, 3, 1)
    try:
        found.start(Patient())
        yield found
    finally:
        found.stop()


class Crowd:
    """Publishers that do not stop, each over a connection of its own to a partition at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._enough = False
        self.confirmed: list[bytes] = []

    async def _publish(self, number: int) -> None:
        async with weir.connect(self._url, request_timeout=20.0) as w:
            sent = 0
            while not self._enough:
                value = b"%d.%d" % (number, sent)
                await w.publish("t", value, partition=(number + sent) % PARTITIONS)
                self.confirmed.append(value)
                sent += 1

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(PUBLISHERS):
                group.create_task(self._publish(number))
            try:
                yield
            finally:
                self._enough = True


async def all_of(w: Client) -> list[bytes]:
    async with w.reader("t", follow=False) as reader:
        return [message.value async for message in reader]


async def from_latest(w: Client) -> list[bytes]:
    found = []
    async with w.reader("t", start="latest") as reader:
        async for message in reader:
            found.append(message.value)
            if len(found) == BEHIND_LATEST:
                break
    return found


def test_what_is_cut_while_others_publish_is_a_prefix_or_a_suffix(nodes: NodeSet) -> None:
    """A cut at one stamp: each partition is asked again how far it is complete at the highest of
    all answers. Asked once, one of 34 reads lacked messages that lie before others that it had.
    """

    async def body() -> None:
        crowd = Crowd(nodes.url)
        prefixes: list[tuple[set[bytes], list[bytes]]] = []
        suffixes: list[tuple[set[bytes], list[bytes]]] = []
        async with weir.connect(nodes.url, request_timeout=20.0) as w:
            await w.create_topic("t", PARTITIONS, order="total")
            async with crowd.publishing():
                for read in range(READS):
                    before = {*crowd.confirmed}
                    cuts = await asyncio.gather(*(all_of(w) for _ in range(AT_ONCE)))
                    prefixes += [(before, found) for found in cuts]
                    if not read % 4:
                        before = {*crowd.confirmed}
                        suffixes.append((before, await from_latest(w)))
            order = await all_of(w)
        assert sorted(order) == sorted(crowd.confirmed)
        for before, found in prefixes:
            assert found == order[: len(found)], "no prefix of the order"
            assert before <= {*found}, "what was confirmed before is missing"
        for before, found in suffixes:
            at = order.index(found[0])
            assert found == order[at : at + len(found)], "no suffix of the order"
            assert not before & {*found}, "what was confirmed before is no news"

    asyncio.run(asyncio.wait_for(body(), 120))


def test_who_outlasts_the_lease_of_its_turn_works_no_more(nodes: NodeSet) -> None:
    """Of two consumers in total order one is slower than its lease. It kept the turn in its head,
    and both worked at once.
    """

    async def body() -> None:
        begun: list[tuple[str, int]] = []
        async with weir.connect(nodes.url, request_timeout=20.0) as w:
            await w.create_topic("t", PARTITIONS, order="total")
            async with w.producer("t") as producer:
                for number in range(MESSAGES):
                    producer.send(b"%d" % number)
            taken, over = asyncio.Event(), asyncio.Event()

            async def slow() -> None:
                consumer = w.consumer(
                    "t", cluster="crew", mode="ordered", lease=1.0, max_work=0,
                    on_stale=lambda _: None,
                )  # fmt: skip
                async with consumer:
                    async for delivery in consumer.deliveries():
                        begun.append(("slow", int(delivery.message.value)))
                        await taken.wait()
                        delivery.done()
                    over.set()

            late = asyncio.ensure_future(slow())
            while not begun:
                await asyncio.sleep(0.01)
            async with w.consumer("t", cluster="crew", mode="ordered", lease=30.0) as other:
                async for delivery in other.deliveries():
                    begun.append(("other", int(delivery.message.value)))
                    taken.set()
                    delivery.done()
                    # Each look lets the slow one go on, if it thinks that it may.
                    await asyncio.sleep(0.005)
                    if len({value for _, value in begun}) == MESSAGES:
                        break
                late.cancel()
                await asyncio.wait([late])
            async with w.reader("t", follow=False) as reader:
                order = [int(message.value) async for message in reader]
        first = next(at for at, (who, _) in enumerate(begun) if who == "other")
        assert [who for who, _ in begun[first:]] == ["other"] * MESSAGES, "two work at once"
        assert [value for _, value in begun[first:]] == order

    asyncio.run(asyncio.wait_for(body(), 60))


class Line:
    """A way to a node that a test can tell to lose all answers, and to be gone."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.is_mute = False

    async def open(self) -> None:
        """Take connections, at the same port as before."""
        self._server = await asyncio.start_server(self._taken, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.is_mute = False

    def cut(self) -> None:
        """End all connections, and take no more."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(*self._to)
        self._writers |= {writer, forth}
        await asyncio.gather(self._pass(reader, forth), self._pass(back, writer, answers=True))
        self._writers -= {writer, forth}

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (answers and self.is_mute):
                    writer.write(data)
        writer.transport.abort()


async def scatter(w: Client, value: bytes) -> None:
    async with w.scatter() as s:
        for partition in range(2):
            s.publish("t", value, partition=partition)


async def partitions(w: Client) -> list[list[bytes]]:
    found: list[list[bytes]] = [[], []]
    async with w.reader("t", follow=False) as reader:
        async for message in reader:
            found[message.partition].append(message.value)
    return found


async def again(w: weir.Client) -> None:
    """Wait until a client is connected again: it may rest for longer than its requests last."""
    while True:
        with contextlib.suppress(Disconnected):
            await w.describe("t")
            return


def test_a_producer_id_of_which_the_end_is_not_known_scatters_no_more() -> None:
    """Its client was never told what became of the last one, which was committed: with the same
    producer id the next one was `SequenceReused`, and all that came after it.
    """

    async def body() -> None:
        with running_node() as node:
            line = Line(node.host, node.port)
            await line.open()
            url = f"weir://127.0.0.1:{line.port}"
            async with (
                weir.connect(node.url) as near,
                weir.connect(url, request_timeout=1.0) as far,
            ):
                await near.create_topic("t", 2)
                await scatter(far, b"before")
                line.is_mute = True
                lost = asyncio.ensure_future(scatter(far, b"lost"))
                while len((await partitions(near))[1]) < 2:
                    await asyncio.sleep(0.01)
                line.cut()
                with pytest.raises(Disconnected):
                    await lost
                await line.open()
                await again(far)
                await scatter(far, b"behind")
                await scatter(far, b"last")
                assert await partitions(near) == [[b"before", b"lost", b"behind", b"last"]] * 2
            line.cut()

    asyncio.run(asyncio.wait_for(body(), 60))
