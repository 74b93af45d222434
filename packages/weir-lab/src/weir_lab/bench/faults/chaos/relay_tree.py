"""A core set, tandem relays below it, and access relays below those, each a process of its own.

The topology names each tandem relay at a proxy of this process, so that its link to the relays
below can be cut: they go on at their next upper, as where a carrier's network is away.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from weir.client.client import Client
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL
from weir.server.interpreter import environment, python
from weir.testing.nodes import HOST, READY, START_SECONDS, NodeSet, Patient, free_ports
from weir.topology.file import read

CORE_NODES = 3
#: By the id of each access set, its uppers, the preferred one first, and its tag ("": all).
ACCESS = {20: ((10, 11), ""), 21: ((11, 10), ""), 22: ((11, 10), "odd")}
TANDEM = (10, 11)
TAGS = ("even", "odd")
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_CHUNK = 1 << 16


class RelayFailed(WeirError):
    """A relay did not start; the message holds what it said."""


class RelayProcess:
    """A relay that is killed, paused and started again at its port."""

    def __init__(
        self, core: str, folder: Path, port: int, number: int, tag: str = "", upper: str = ""
    ) -> None:
        """Prepare the relay of set `number`, whose one node has that number, too; it pulls from the
        relay at `upper`, if one is given.
        """
        options = ["--data", str(folder), "--port", str(port), "--until-eof"]
        options += ["--set", str(number), "--node", str(number)]
        if tag:
            options += ["--tags", tag]
        if upper:
            options += ["--upper", upper]
        self._command = python("weir.cli", "relay", core, *options)
        self._log = folder.with_suffix(".log")
        self.number = number
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return f"weir://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The number of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return once it listens. Raises `RelayFailed`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment(), start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        if not ready or "weir relays" not in self._process.stdout.readline():
            self.kill()
            raise RelayFailed(f"relay {self.number} did not start: see {self._log}")

    def signal(self, number: int) -> None:
        """Send a signal to a relay that runs."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process is None or self._process.poll() is not None

    def strike(self) -> None:
        """End it at once. Raises `RelayFailed` if it had ended by itself before."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise RelayFailed(f"relay {self.number} ended by itself, with {code}: see {self._log}")
        self.kill()

    def kill(self) -> None:
        """End it at once; one that is not there is ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Let it end; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)  # nothing, if it has ended
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return code


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
            number: RelayProcess(self.core.url, folder / f"relay-{number}", port, number, tag)
            for number, port, tag in (*tandem, *access)
        }

    async def start(self, client: Client) -> None:
        """Apply the topology to a core that runs, and start all relays. Raises `WeirError`."""
        found = read(self._topology())
        assert found.topology is not None, found.problems
        await _raise_level(client)
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


async def _raise_level(client: Client) -> None:
    """Raise the format level to that of this release, once all nodes have told theirs."""
    until = time.monotonic() + _END_SECONDS
    while (await client.nodes.raise_level()).level < FORMAT_LEVEL:
        if time.monotonic() > until:
            raise RelayFailed(f"the nodes of the core do not support format level {FORMAT_LEVEL}")
        await asyncio.sleep(_LOOK_SECONDS)


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()  # JSON text, numbers and lists are TOML, too
