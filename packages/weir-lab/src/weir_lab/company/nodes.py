"""All brokers and offices of the company as processes, from their start to their end."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from weir.client.client import Client
from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import READY, Berth, NodeSet, Patient, RelayProcess, free_ports
from weir.topology.file import read
from weir_lab.bench.faults.chaos.relay_tree import raise_level
from weir_lab.company.office import Command, Reply
from weir_lab.company.sites import SITES, Site, sites, topology
from weir_lab.network.links import Count

_ANSWER_S = 600.0
_SETTLED_S = 60.0
_LOOK_S = 0.05


class CompanyFailed(WeirError):
    """A part of the company did not do what it was told; the message says which."""


class Grid(Protocol):
    """What the company needs of a network."""

    def address(self, place: str) -> str:
        """Return the address of a place."""

    def before(self, place: str) -> tuple[str, ...]:
        """Return what a command begins with that runs in a place."""

    def listen(self, place: str, port: int) -> int:
        """Return at which port a process of a place listens that others reach at `port`."""

    def isolate(self, place: str) -> None:
        """Cut a place off from all others, in both directions."""

    def rejoin(self, place: str) -> None:
        """Undo `isolate`."""

    def counts(self) -> dict[tuple[str, str], Count]:
        """Return what came to each link since the beginning."""


class OfficeProcess:
    """The process of an office's clients, which ends with this one."""

    def __init__(self, name: str, before: Sequence[str], log: Path) -> None:
        """Start it; what goes wrong is written to a file."""
        self.name = name
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*before, *python("weir_lab.company.office", name)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment(),
                start_new_session=True,
            )  # fmt: skip

    async def ask(self, command: Command) -> Reply:
        """Return the answer to a command. Raises `CompanyFailed`."""
        asking = asyncio.to_thread(self._ask, command)
        try:
            reply = await asyncio.wait_for(asking, _ANSWER_S)
        except TimeoutError:
            self.close()  # so that the thread ends, too: the loop waits for it before it ends
            raise CompanyFailed(f"{self.name} does not answer") from None
        except asyncio.CancelledError:
            self.close()
            raise
        if reply.error:
            raise CompanyFailed(f"{self.name}: {reply.error}")
        return reply

    def _ask(self, command: Command) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                return msgspec.json.decode(line, type=Reply)
        raise CompanyFailed(f"the process of {self.name} has ended")

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError, ValueError):
                pipe.close()


class Company:
    """The core, the relays below it, and the offices."""

    def __init__(self, folder: Path, network: Grid, brokers: int, topic: str) -> None:
        """Prepare `brokers` nodes of each set in a folder; relays are for one topic."""
        self._network = network
        self._topic = topic
        self._folder = folder
        berths = [
            Berth(network.address(one.name), network.before(one.name), brokerset=one.number)
            for one in sites("core")
            for _ in range(brokers)
        ]
        settings = {**READY, "WEIR__ACCESS__INSECURE": "true"}
        self.core = NodeSet(folder / "core", len(berths), 1, berths=berths, settings=settings)
        for member, berth in zip(self.core.members, berths, strict=True):
            (site,) = (one for one in sites("core") if one.number == berth.brokerset)
            self.core.listen(member.node, network.listen(site.name, member.port))
        below = [one for one in SITES if one.upper]
        numbers = iter(range(len(berths) + 1, len(berths) + 1 + brokers * len(below)))
        self.relays: dict[str, list[RelayProcess]] = {
            one.name: [self._relay(one, next(numbers)) for _ in range(brokers)] for one in below
        }
        self.offices: dict[str, OfficeProcess] = {}

    def start_core(self) -> None:
        """Start the core, and the processes of offices. Raises `WeirError`."""
        self.core.start(Patient())
        for one in sites("office"):
            before = self._network.before(one.name)
            log = self._folder / f"{one.name}.log"
            self.offices[one.name] = OfficeProcess(one.name, before, log)

    async def settle(self, client: Client) -> None:
        """Raise the format level, from which on nodes say of which set they are; return once no set
        holds a majority of a group. Raises `WeirError`.
        """
        await raise_level(client)
        until = time.monotonic() + _SETTLED_S
        while time.monotonic() < until:
            sets, status = await client.nodes.sets(), await client.nodes.status()
            if sets.rule == "apart" and status.settled:
                return
            await asyncio.sleep(_LOOK_S)
        raise CompanyFailed(f"groups are not spread over the core sets after {_SETTLED_S:g} s")

    async def start_relays(self, client: Client) -> None:
        """Apply the topology, and start all relays. Raises `WeirError`."""
        found = read(topology(self._places(), self._topic))
        if found.topology is None:
            raise CompanyFailed(f"the topology of the company is wrong: {found.problems}")
        state = await client.topology.describe()
        await client.topology.apply(found.topology, state.version)
        # Each tier by turns, so that those below find their uppers.
        for tier in ("tandem", "access"):
            starting = [relay for one in sites(tier) for relay in self.relays[one.name]]
            await asyncio.gather(*(asyncio.to_thread(one.start) for one in starting))

    def close(self) -> list[str]:
        """End all processes; return what did not end well."""
        for office in self.offices.values():
            office.close()
        ended = _ended([one for some in self.relays.values() for one in some])
        wrong = [f"relay {one.number} ended with {code}" for one, code in ended if code]
        try:
            self.core.stop()
        except WeirError as error:
            wrong.append(str(error))
        return wrong

    def urls(self, site: Site) -> list[str]:
        """Return the addresses of the relays of a site."""
        return [one.url for one in self.relays[site.name]]

    def _relay(self, site: Site, number: int) -> RelayProcess:
        at = Berth(
            self._network.address(site.name), self._network.before(site.name),
            brokerset=site.number,
        )  # fmt: skip
        (port,) = free_ports(1)
        folder = self._folder / f"{site.name}-{number}"
        options = ("--topics", self._topic, "--tags", ",".join(site.tags), "--insecure")
        listens = self._network.listen(site.name, port)
        return RelayProcess(
            self.core.url, folder, port, *options, number=number, at=at, listens=listens
        )

    def _places(self) -> dict[str, list[str]]:
        """Return the nodes of each set as the topology has them."""
        core = sites("core")
        each = len(self.core.members) // len(core)
        found: dict[str, list[str]] = {one.name: [] for one in core}
        for at, member in enumerate(self.core.members):
            found[core[at // each].name].append(f"{member.node}={member.host}:{member.port}")
        for name, relays in self.relays.items():
            found[name] = [f"{one.number}={one.host}:{one.port}" for one in relays]
        return found


def _ended(relays: Sequence[RelayProcess]) -> list[tuple[RelayProcess, int]]:
    """Let all relays end at the same time; return their exit codes."""
    running = [one for one in relays if not one.has_ended]
    # A second signal would end one at once that is about to end by the first.
    with ThreadPoolExecutor(max(len(running), 1)) as pool:
        return [*zip(running, pool.map(RelayProcess.stop, running), strict=True)]
