"""Connections of a simulated client: what asyncio promises of them, over links of the world."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from weir.testing.simulator.clients.connections import Machine
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.network import End, Link, Net, Way
from weir.testing.simulator.world import SECOND, World

SEEDS = range(12)
#: Stands for the clocks and dice of a simulated process.
OWNER: ContextVar[str] = ContextVar("OWNER", default="the machine that plays the world")


class Host:
    """A node whose one process sends back what it gets."""

    serves, number, node, up = True, 0, 1, True

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: list[Link] = []
        self.got = bytearray()
        self.lost_at = -1

    @property
    def running(self) -> list[Host]:
        return [self] if self.up else []

    @property
    def sockets(self) -> Host:
        return self

    def connect(self, client: End, up: Way, down: Way) -> Link:
        self.links.append(Link(self.world, client, self, up, down))
        return self.links[-1]

    def received(self, link: Link, data: bytes) -> None:
        self.got += data
        link.to_client(data)

    def lost(self, link: Link) -> None:
        self.lost_at = self.world.now


class Nodes:
    """A set of one node."""

    def __init__(self, world: World) -> None:
        self.host = Host(world)
        self.hosts: dict[int, Any] = {1: self.host}
        self.misled: dict[int, int] = {}
        self.sites: dict[str, int] = {}
        self.servers: dict[tuple[str, int], Any] = {}
        self.net = Net(far=False)
        self.far = False


class Echo(asyncio.Protocol):
    """Keeps what comes, read by read."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.paused = 0
        self.resumed = asyncio.Event()
        self.over = asyncio.Event()
        self.error: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self.reads.append(data)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.over.set()


def play(seed: int, main: Any) -> tuple[Nodes, Machine]:
    world = World(seed)
    nodes = Nodes(world)
    machine = Machine(world, nodes, -1, "client")  # type: ignore[arg-type]
    loop = VirtualLoop(world, machine)
    tasks: list[asyncio.Task[None]] = []
    loop.enter(lambda: tasks.append(loop.create_task(main(loop, nodes))))
    world.run(60 * SECOND)
    assert tasks[0].done()
    assert tasks[0].result() is None
    assert not loop.uncaught
    machine.cut(silent=False)
    loop.drop()
    return nodes, machine


def test_a_name_may_lead_to_another_node_or_to_where_none_is() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        nodes.hosts[2] = Host(nodes.host.world)
        nodes.misled[1] = 2
        transport, _ = await loop.create_connection(Echo, "node1", 6800)
        transport.write(b"a")
        await asyncio.sleep(5)
        assert (nodes.host.got, nodes.hosts[2].got) == (b"", b"a")
        nodes.misled[1] = 0
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Echo, "node1", 6800)
        del nodes.misled[1]
        transport, _ = await loop.create_connection(Echo, "node1", 6800)
        transport.write(b"b")
        await asyncio.sleep(5)
        assert nodes.host.got == b"b"

    play(1, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_come_in_their_order_cut_where_chance_would_have_it(seed: int) -> None:
    data = bytes(range(256)) * 40
    reads: list[int] = []

    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        transport, echo = await loop.create_connection(Echo, "node1", 6800)
        for at in range(0, len(data), 1_000):
            transport.write(data[at : at + 1_000])
            await asyncio.sleep(0.001)
        await asyncio.sleep(5)
        assert b"".join(echo.reads) == data
        reads.append(len(echo.reads))
        transport.close()
        await echo.over.wait()
        assert echo.error is None

    play(seed, main)
    assert reads[0] > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_who_closes_has_sent_all_that_it_wrote(seed: int) -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        transport, echo = await loop.create_connection(Echo, "node1", 6800)
        transport.write(b"x" * 100_000)
        transport.close()
        await echo.over.wait()
        await asyncio.sleep(20)

    nodes, _ = play(seed, main)
    assert len(nodes.host.got) == 100_000
    assert nodes.host.lost_at > 0


def test_who_writes_more_than_is_read_is_asked_to_pause() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        transport, echo = await loop.create_connection(Echo, "node1", 6800)
        nodes.host.links[0].hold(True)
        for _ in range(100):
            transport.write(b"x" * 5_000)
        assert echo.paused == 1
        assert transport.get_write_buffer_size() > 0
        nodes.host.links[0].hold(False)
        await echo.resumed.wait()

    for seed in SEEDS:
        play(seed, main)


def test_what_came_before_reading_was_paused_waits() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        transport, echo = await loop.create_connection(Echo, "node1", 6800)
        transport.pause_reading()
        transport.write(b"hello")
        await asyncio.sleep(1)
        assert not echo.reads
        transport.resume_reading()
        await asyncio.sleep(1)
        assert b"".join(echo.reads) == b"hello"

    play(3, main)


def test_a_connection_that_breaks_is_heard_of() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        _, echo = await loop.create_connection(Echo, "node1", 6800)
        nodes.host.links[0].cut()
        await echo.over.wait()
        assert isinstance(echo.error, ConnectionResetError)

    play(0, main)


def test_nobody_answers_for_a_name_that_is_not_known_or_a_port_where_nobody_listens() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        with pytest.raises(OSError, match="no address"):
            await loop.create_connection(Echo, "elsewhere", 6800)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Echo, "node1", 6907)
        nodes.host.up = False
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Echo, "node1", 6800)

    play(0, main)


def test_a_dial_over_a_way_that_is_closed_waits_until_it_opens() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        nodes.net.close(-1, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await loop.create_connection(Echo, "node1", 6800)
        nodes.net.heal()
        await loop.create_connection(Echo, "node1", 6800)

    play(0, main)


def test_what_a_process_sends_behind_its_network_reaches_nobody() -> None:
    world = World(1)
    nodes = Nodes(world)
    machine = Machine(world, nodes, -1, "client")  # type: ignore[arg-type]
    loop = VirtualLoop(world, machine)

    async def main() -> None:
        transport, _ = await loop.create_connection(Echo, "node1", 6800)
        try:
            await asyncio.sleep(100)
        finally:
            transport.write(b"farewell")

    loop.enter(lambda: loop.create_task(main()))
    world.run(1 * SECOND)
    machine.cut(silent=False)
    loop.drop()
    world.run(10 * SECOND)
    assert not nodes.host.got
    assert nodes.host.lost_at > 0


class Beginner(Echo):
    """Begins a task with what comes, as a client does that dials again."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[str] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._begin()

    def _begin(self) -> None:
        asyncio.get_running_loop().create_task(self._own())

    async def _own(self) -> None:
        self.owners.append(OWNER.get())


def test_what_comes_over_a_connection_is_taken_by_the_process_that_opened_it() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        OWNER.set("this process")
        transport, beginner = await loop.create_connection(Beginner, "node1", 6800)
        transport.write(b"a")
        await asyncio.sleep(5)
        nodes.host.links[0].finish()
        await beginner.over.wait()
        await asyncio.sleep(1)
        assert len(beginner.owners) >= 2
        assert set(beginner.owners) == {"this process"}

    play(1, main)


def test_processes_of_a_world_serve_each_other() -> None:
    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readexactly(3)
            writer.write(asked * 40_000)
            await writer.drain()
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(answer, "0.0.0.0", 7_000)
        assert server.is_serving()
        assert server.sockets[0].getsockname() == ("client", 7_000)
        with pytest.raises(OSError, match="port 7000 of client is taken"):
            await asyncio.start_server(answer, "0.0.0.0", 7_000)
        several = [await asyncio.open_connection("client", 7_000) for _ in range(3)]
        for number, (_, writer) in enumerate(several):
            writer.write(b"ab%d" % number)
        for number, (reader, writer) in enumerate(several):
            assert await reader.readexactly(120_000) == b"ab%d" % number * 40_000
            writer.close()
        server.close()
        await asyncio.sleep(1)
        for port in (7_000, 7_001):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("client", port)
        with pytest.raises(OSError, match="other has no address"):
            await asyncio.open_connection("other", 7_000)

    for seed in range(5):
        play(seed, main)


def test_a_process_that_is_cut_is_served_and_serves_no_more() -> None:
    asked: list[bytes] = []
    ended: list[bytes] = []

    async def main(loop: VirtualLoop, nodes: Nodes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readexactly(3))
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
            ended.append(asked[0])
            writer.close()

        await asyncio.start_server(answer, "0.0.0.0", 7_000)
        machine = Machine(nodes.host.world, nodes, -2, "other")  # type: ignore[arg-type]
        other = VirtualLoop(nodes.host.world, machine)

        async def ask() -> None:
            _, writer = await asyncio.open_connection("client", 7_000)
            writer.write(b"abc")
            try:
                await asyncio.sleep(60)
            finally:
                writer.close()

        tasks: list[asyncio.Task[None]] = []
        other.enter(lambda: tasks.append(other.create_task(ask())))
        await asyncio.sleep(1)
        assert (asked, ended) == ([b"abc"], [])
        machine.cut(silent=False)
        other.drop()
        await asyncio.sleep(1)

    play(3, main)
    assert ended == [b"abc"]
