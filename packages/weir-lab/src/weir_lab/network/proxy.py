"""The process that carries TCP connections between places: `python -m weir_lab.network.proxy`.

It is for machines where nobody may make devices. It reads a `ProxyPlan`, one line of JSON; then
each line is a command that it answers with a line. It ends when its stdin does.

The proxy knows who connects by the socket's process, whose environment names its place. Bytes are
late as `links` says, as packets would be; a link that is cut holds them back, as TCP does, which
sends them again until they come through. So nothing is lost or overtaken here, and handshakes take
no time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Iterator, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from weir_lab.network.links import Link, Wire
from weir_lab.network.switch import Connection, Cut, Listen, Tell, Told

#: The variable that names the place of a process.
MARK = "WEIR_PLACE"
_HOST = "127.0.0.1"
_CHUNK = 1 << 16
#: Chunks of a connection that are on their way at once; more wait in the sender's socket.
_ON_THEIR_WAY = 256
_QUEUE_MS = 60_000.0
_INODE = 9

Command = Cut | Tell | Listen
#: The ports of who connects, and of where to.
Ends = tuple[int, int]

log = logging.getLogger(__name__)


class ProxyPlan(msgspec.Struct, frozen=True):
    """The names of places, the first being that of processes without a mark, and their links."""

    names: list[str]
    connections: list[Connection]
    seed: int


class _Road:
    """One direction between two places."""

    def __init__(self, link: Link, dice: random.Random) -> None:
        self.wire = Wire(_steady(link), dice)
        self.open = asyncio.Event()
        self.open.set()

    def cut(self, is_cut: bool) -> None:
        self.wire.is_cut = is_cut
        (self.open.clear if is_cut else self.open.set)()


def _steady(link: Link) -> Link:
    """Return a link as a stream of bytes sees it: late, and neither lossy nor out of order."""
    return msgspec.structs.replace(link, loss=0, duplicate=0, reorder=0, queue_ms=_QUEUE_MS)


class Proxies:
    """All ports that are listened at, and the roads between places."""

    def __init__(self, plan: ProxyPlan) -> None:
        """Begin without ports. Raises `ValueError`."""
        dice = random.Random(plan.seed)
        self._numbers = {name: number for number, name in enumerate(plan.names)}
        self._roads = {one.way: _Road(one.link, dice) for one in plan.connections}
        #: Of processes with a mark; a number that is used again has another start.
        self._places: dict[tuple[int, str], int] = {}
        self._servers: list[asyncio.Server] = []
        #: The connections whose places are looked for next.
        self._asked: dict[Ends, asyncio.Future[int]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def obey(self, command: Command) -> Told:
        """Carry out a command. Raises `OSError` if a port is taken."""
        match command:
            case Cut():
                for way in command.ways:
                    self._roads[way].cut(command.is_cut)
                return Told()
            case Tell():
                return Told([(way, road.wire.count) for way, road in self._roads.items()])
            case Listen():

                def serve(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
                ) -> Awaitable[None]:
                    return self._serve(command, reader, writer)

                server = await asyncio.start_server(serve, _HOST, command.port)
                self._servers.append(server)
                return Told()

    async def _serve(
        self, at: Listen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            peer = writer.get_extra_info("peername")
            if peer is None:
                return  # it has hung up before it was accepted
            source = await self._place_of((peer[1], at.port))
            there, back = (
                self._roads.get(way) for way in ((source, at.place), (at.place, source))
            )  # fmt: skip
            if there is not None:
                await there.open.wait()
            back_reader, onward = await asyncio.open_connection(_HOST, at.target)
            try:
                await asyncio.gather(_pass(reader, onward, there), _pass(back_reader, writer, back))
            finally:
                onward.transport.abort()
        except OSError:
            return  # one of both ends broke, and so does the other
        finally:
            writer.transport.abort()

    async def _place_of(self, ends: Ends) -> int:
        """Return the place of the process that has a connection; 0 if it is not found."""
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[ends] = place
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await place

    async def _look(self) -> None:
        """Find places until none is asked for: all that are asked for at once by one look, and in a
        thread. Else the proxies would stand still while many dial, who would then dial again.
        """
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                found = await asyncio.to_thread(self._find, set(asked))
            except (OSError, ValueError, IndexError) as error:
                found = {}
                log.warning("places are not found: %s", error)
            for ends, place in asked.items():
                if not place.done():
                    place.set_result(found.get(ends, 0))

    def _find(self, asked: Set[Ends]) -> dict[Ends, int]:
        """Return the places of processes by their connections. Raises `OSError`."""
        sockets = _sockets(asked)
        found: dict[Ends, int] = {}
        for pid, place in self._marked():
            with suppress(OSError):  # it has ended, or is not ours
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if ends := sockets.get(os.readlink(entry)):
                            found[ends] = place
            if len(found) == len(sockets):
                break
        return found

    def _marked(self) -> Iterator[tuple[int, int]]:
        """Yield processes with a mark, each with its place."""
        mark = f"{MARK}=".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                began = (entry / "stat").read_text().rpartition(")")[2].split()[19]
                known = self._places.get((int(entry.name), began))
                if known is None:
                    words = (entry / "environ").read_bytes().split(b"\0")
                    names = [word[len(mark) :].decode() for word in words if word.startswith(mark)]
                    if not names or names[0] not in self._numbers:
                        continue
                    known = self._places[int(entry.name), began] = self._numbers[names[0]]
                yield int(entry.name), known


def _sockets(asked: Set[Ends]) -> dict[str, Ends]:
    """Return connections by the names of the sockets from which they are made."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        ends = int(words[1].rpartition(":")[2], 16), int(words[2].rpartition(":")[2], 16)
        if ends in asked:
            found[f"socket:[{words[_INODE]}]"] = ends
    return found


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, road: _Road | None
) -> None:
    """Pass bytes on when they are due, until their end. Raises `OSError` then, too."""
    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_ON_THEIR_WAY)
    arriving = asyncio.create_task(_arrive(way, writer, road))
    try:
        while data := await reader.read(_CHUNK):
            due = time.monotonic()
            if road is not None:
                await road.open.wait()
                (due,) = road.wire.offer(time.monotonic(), len(data)) or (due,)
            await way.put((due, data))
        await way.put((0.0, b""))
        await arriving
    finally:
        arriving.cancel()
    raise ConnectionResetError  # one side has ended: so does the other


async def _arrive(
    way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, road: _Road | None
) -> None:
    while True:
        due, data = await way.get()
        if not data:
            return
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        if road is not None:
            await road.open.wait()
            road.wire.arrived(len(data))
        if writer.transport.is_closing():
            continue  # asyncio would complain of each write on stderr
        writer.write(data)
        with suppress(OSError):  # the reading of the other direction tells
            await writer.drain()


async def _main() -> None:
    """Carry out commands until stdin ends, and with it this process."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    proxies = Proxies(msgspec.json.decode(await lines.readline(), type=ProxyPlan))
    _say(Told())
    while line := await lines.readline():
        _say(await proxies.obey(msgspec.json.decode(line, type=Command)))
    os._exit(0)  # connections that are open end with it


def _say(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_main())
