"""A core set, tandem relays below it, and access relays below those, each a process of its own.

The topology names each tandem relay at a proxy of this process, so that its link to the relays
below can be cut: they go on at their next upper, as where a carrier's network is away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from weir.client.client import Client
from weir.model.limits import FORMAT_LEVEL
from weir.testing.nodes import (
    HOST,
    READY,
    NodeSet,
    Patient,
    RelayFailed,
    RelayProcess,
    free_ports,
)
from weir.topology.file import read

CORE_NODES = 3
#: By the id of each access set, its uppers, the preferred one first, and its tag ("": all).
ACCESS = {20: ((10, 11), ""), 21: ((11, 10), ""), 22: ((11, 10), "odd")}
TANDEM = (10, 11)
TAGS = ("even", "odd")
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_CHUNK = 1 << 16


class LinkProxy:
    """Passes the bytes of TCP connections on to one port, until it is cut."""

    def __init__(self, port: int, target: int) -> None:
        """Listen at `port` once it is started, for what runs at `target`."""
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port)

    def cut(self) -> None:
        """Break all connections, and pass nothing on until `heal`."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def heal(self) -> None:
        """Pass on what comes from now on."""
        self._is_cut = False

    async def close(self) -> None:
        """Listen no more."""
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._is_cut:
                return
            back, onward = await asyncio.open_connection(HOST, self._target)
            self._open.add(onward)
            try:
                await asyncio.gather(self._pass(reader, onward), self._pass(back, writer))
            finally:
                self._open.discard(onward)
                onward.transport.abort()
        except OSError:
            return  # its end broke: both do
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one side has ended: so does the other


class RelayTree:
    """All processes, from their start to their end."""

    def __init__(self, folder: Path) -> None:
        """Prepare everything in a folder."""
        self.core = NodeSet(folder / "core", CORE_NODES, 1, settings=READY)
        self._folder = folder
        ports = free_ports(2 * len(TANDEM) + len(ACCESS))
        first = len(TANDEM)
        self.proxies = {
            number: LinkProxy(ports[at], ports[first + at]) for at, number in enumerate(TANDEM)
        }
        tandem = [(number, ports[first + at], "") for at, number in enumerate(TANDEM)]
        access = [
            (number, ports[2 * first + at], tag)
            for at, (number, (_, tag)) in enumerate(ACCESS.items())
        ]
        self.relays = {
            number: RelayProcess(
                self.core.url,
                folder / f"relay-{number}",
                port,
                *(("--tags", tag) if tag else ()),
                number=number,
            )
            for number, port, tag in (*tandem, *access)
        }

    async def start(self, client: Client) -> None:
        """Apply the topology to a core that runs, and start all relays. Raises `WeirError`."""
        found = read(self._topology())
        assert found.topology is not None, found.problems
        await raise_level(client)
        state = await client.topology.describe()
        await client.topology.apply(found.topology, state.version)
        for proxy in self.proxies.values():
            await proxy.start()
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in self.relays.values()))

    async def restart_core(self, node: int) -> None:
        """Start a core node again that was killed. Raises `NodeFailed`."""
        await asyncio.to_thread(self.core.restart, node, Patient())

    async def close(self) -> Sequence[int]:
        """End all relays, then the proxies; return the exit codes of relays that were not 0."""
        codes = await asyncio.gather(
            *(asyncio.to_thread(one.stop) for one in self.relays.values()), return_exceptions=True
        )
        for proxy in self.proxies.values():
            with suppress(OSError):
                await proxy.close()
        return [code for code in codes if isinstance(code, int) and code]

    def _topology(self) -> str:
        """Return the topology as a file has it."""
        nodes = [f"{one.node}={one.host}:{one.port}" for one in self.core.members]
        rows: list[tuple[str, int, str, tuple[str, ...], list[str]]] = []
        rows.append(("core", 0, "core", (), nodes))
        for number in TANDEM:
            at = f"{number}={HOST}:{self.proxies[number].port}"
            rows.append((f"tandem-{number}", number, "tandem", ("core",), [at]))
        for number, (uppers, _) in ACCESS.items():
            at = f"{number}={HOST}:{self.relays[number].port}"
            names = tuple(f"tandem-{upper}" for upper in uppers)
            rows.append((f"access-{number}", number, "access", names, [at]))
        text = []
        for name, number, tier, upper, places in rows:
            values = {"name": name, "id": number, "tier": tier, "nodes": places, "upper": [*upper]}
            lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value != []]
            text.append("\n".join(["[[set]]", *lines]))
        return "\n\n".join(text) + "\n"


async def raise_level(client: Client) -> None:
    """Raise the format level to that of this release, once all nodes have told theirs. Raises
    `RelayFailed`.
    """
    until = time.monotonic() + _END_SECONDS
    while (await client.nodes.raise_level()).level < FORMAT_LEVEL:
        if time.monotonic() > until:
            raise RelayFailed(f"the nodes of the core do not support format level {FORMAT_LEVEL}")
        await asyncio.sleep(_LOOK_SECONDS)


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()  # JSON text, numbers and lists are TOML, too
