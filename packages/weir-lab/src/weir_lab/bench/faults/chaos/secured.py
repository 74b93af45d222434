"""A set of nodes with TLS on all lanes, users, a fleet, and key files; and its operator, who runs
`weir` as anybody would, and whose commands are killed.

secrets/ca/          the private CA, which lies on no node
secrets/node-N/      what is carried to a node: node.pem, node.key, ca.pem, keys
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from weir.access.devices import Level
from weir.access.wrapping import KEY_BYTES, write_key_line
from weir.client.access import AccessRule
from weir.client.client import connect
from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import HOST, NodeSet
from weir.tls.authority import begun, name_of
from weir.tls.files import ClientFiles
from weir.tls.identity import node
from weir_lab.bench.faults.chaos.load import PRODUCER, Login, hub_of
from weir_lab.bench.revocations import raise_level

ROOT, _FLEET = "root", "locks"
_DAYS = 2
_HUBS = 1_000
_COMMAND_S = 60.0
#: A busy machine may not answer in the patience of a command; then an operator asks again.
_TRIES = 3
_PAUSE_S = 1.0
_SAID = 300


class CommandFailed(WeirError):
    """A command of the operator failed each time; the message says what it said."""


class Secured:
    """The set: `login` is what its clients come by."""

    def __init__(self, nodes: NodeSet, folder: Path) -> None:
        """Make the CA, a certificate for each node, and a key file in `folder`; start nothing.

        Raises `BadAuthority` where `folder` holds a CA already.
        """
        self.nodes = nodes
        self.folder = folder
        self.ca = folder / "ca"
        self._password = secrets.token_hex(16)
        self._keys = [secrets.token_bytes(KEY_BYTES)]
        with begun(self.ca, nodes.system) as ca:
            for member in nodes.members:
                ca.issue(node(ca.system, member.node), (HOST,), _DAYS)
        self.login = Login(
            self._password, ClientFiles(str(self.ca / "ca.pem")), nodes.system,
            secrets.token_bytes(KEY_BYTES),
        )  # fmt: skip
        for member in nodes.members:
            place = self._place(member.node)
            place.mkdir(mode=0o700)
            self.carry_key(member.node)
            self.carry_certificate(member.node)
            self.carry_bundle(member.node)
            self.write_keys(member.node, (0,))
            settings = {
                "WEIR__TLS__CERTIFICATE": str(place / "node.pem"),
                "WEIR__TLS__KEY": str(place / "node.key"),
                "WEIR__TLS__TRUST": str(place / "ca.pem"),
                "WEIR__LINKS__TLS": "require",
                "WEIR__ACCESS__KEY_FILE": str(place / "keys"),
            }
            nodes.let(member.node, settings)

    def url(self, user: str = ROOT) -> str:
        """Return what a user connects to; an empty `user` is nobody."""
        hosts = self.nodes.url.removeprefix("weir://")
        return f"weirs://{user}{'@' if user else ''}{hosts}?ca={self.ca / 'ca.pem'}"

    async def admit(self, topic: str) -> None:
        """Let there be an administrator, and a fleet that may publish to `topic`."""
        async with connect(self.url(""), name="weir-chaos") as client:
            await raise_level(client)
            await client.access.create_user(ROOT, self._password, ["admin"])
            rule = AccessRule(("publish",), "topic", topic)
            await client.access.change_rules(f"fleet.{_FLEET}", [rule])
            first = hub_of(PRODUCER)
            key = self.login.fleet_key
            await client.fleets.put(_FLEET, first, first + _HUBS, Level.PROOF, 1, key)

    def carry_key(self, number: int) -> None:
        """Copy the private key of a node's certificate to it."""
        self._copy(self._issued(number).with_suffix(".key"), self._place(number) / "node.key")

    def carry_certificate(self, number: int) -> None:
        """Copy the certificate of a node to it."""
        self._copy(self._issued(number), self._place(number) / "node.pem")

    def carry_bundle(self, number: int) -> None:
        """Copy what nodes trust to one."""
        self._copy(self.ca / "ca.pem", self._place(number) / "ca.pem")

    def write_keys(self, number: int, which: Sequence[int]) -> None:
        """Write the key file of a node: these keys of all that there ever are, in this order."""
        while len(self._keys) <= max(which):
            self._keys.append(secrets.token_bytes(KEY_BYTES))
        new = self._place(number) / "keys.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(b"".join(write_key_line(self._keys[one]) for one in which))
        new.rename(self._place(number) / "keys")

    def _issued(self, number: int) -> Path:
        return self.ca / "issued" / f"{name_of(node(self.nodes.system, number))}.pem"

    def _place(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    @staticmethod
    def _copy(source: Path, to: Path) -> None:
        """Copy a file as `cp` does: a reader may find a part of it meanwhile."""
        shutil.copyfile(source, to)
        to.chmod(0o600)


class Operator:
    """Runs `weir`; each command but the harmless is killed (kill -9) at any moment, and run again.

    `killed` are those that had not ended by then.
    """

    def __init__(self, secured: Secured, chance: random.Random) -> None:
        """Look after this set; `chance` draws the moments."""
        self.killed = 0
        self._secured = secured
        self._chance = chance
        self._password = secured.login.password or ""
        #: How long a command takes here, as far as is known.
        self._took_s = 0.5

    async def change(self, *words: str) -> None:
        """Kill a command somewhere in its course, and run it again. Raises `CommandFailed`."""
        process = await self._begin(words, quiet=True)
        try:
            await asyncio.wait_for(process.wait(), self._chance.uniform(0, self._took_s))
        except TimeoutError:
            process.kill()
            self.killed += 1
        await process.wait()
        began = time.monotonic()
        await self.run(*words)
        self._took_s = time.monotonic() - began

    async def run(self, *words: str) -> None:
        """Run a command until it succeeds. Raises `CommandFailed` for one that does not."""
        said = b""
        for _ in range(_TRIES):
            process = await self._begin(words, quiet=False)
            try:
                said, _ = await asyncio.wait_for(process.communicate(), _COMMAND_S)
            except TimeoutError:
                process.kill()
                await process.wait()
                said = f"it did not end within {_COMMAND_S:g} s".encode()
                continue
            if not process.returncode:
                return
            await asyncio.sleep(_PAUSE_S)
        text = said.decode(errors="replace").strip()[-_SAID:]
        raise CommandFailed(f"`weir {' '.join(words)}` failed {_TRIES} times: {text}")

    async def _begin(self, words: Sequence[str], quiet: bool) -> asyncio.subprocess.Process:
        out = asyncio.subprocess.DEVNULL if quiet else asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *python("weir.cli", *words),
            stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=asyncio.subprocess.STDOUT,
            env={
                **environment(),
                "WEIR_URL": self._secured.url(),
                "WEIR_PASSWORD": self._password,
                "WEIR_CA_FOLDER": str(self._secured.ca),
            },
        )  # fmt: skip
