"""The data folder of a node: who it is, where it listens now, and its logs.

node.json      system, BrokerSet and node ids; written once, when the node is founded
endpoint.json  host, port and pid of the running process
log-0/         the first numbered log
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from weir.broker.identity import Identity
from weir.errors import WeirError

_NODE = "node.json"
_ENDPOINT = "endpoint.json"


class BadFolder(WeirError):
    """The data folder is not one, or not of this release."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a running node listens."""

    host: str
    port: int
    pid: int


class NodeFolder:
    """One node's data folder."""

    def __init__(self, path: str | Path) -> None:
        """Use a folder; `found` makes it if it is not there."""
        self.path = Path(path)

    def log(self, number: int) -> Path:
        """Return the folder of a numbered log."""
        return self.path / f"log-{number}"

    def found(self) -> Identity:
        """Return the identity that is kept here, drawing it the first time."""
        file = self.path / _NODE
        if file.exists():
            try:
                return msgspec.json.decode(file.read_bytes(), type=Identity)
            except msgspec.DecodeError as error:
                raise BadFolder(f"{file}: {error}. Restore it from a backup") from None
        self.path.mkdir(parents=True, exist_ok=True)
        if self.log(0).exists():
            raise BadFolder(f"{file} is missing, but there are logs: restore it from a backup")
        identity = Identity(system=secrets.randbits(62) + 1)
        self._replace(_NODE, msgspec.json.encode(identity))
        return identity

    def announce(self, host: str, port: int) -> None:
        """Write where this process listens."""
        self._replace(_ENDPOINT, msgspec.json.encode(Endpoint(host, port, os.getpid())))

    def withdraw(self) -> None:
        """Remove the announcement."""
        (self.path / _ENDPOINT).unlink(missing_ok=True)

    def endpoint(self) -> Endpoint | None:
        """Return what the running process announced; None if nothing is announced."""
        try:
            return msgspec.json.decode((self.path / _ENDPOINT).read_bytes(), type=Endpoint)
        except FileNotFoundError:
            return None

    def _replace(self, name: str, data: bytes) -> None:
        aside = self.path / f"{name}.new"
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.path / name)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
