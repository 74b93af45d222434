"""What `weir doctor` looks at, and what it says about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from weir.server.config import Config

State = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """What a check found. `advice` says what to do, and is empty where all is well."""

    check: str
    state: State
    found: str
    advice: str = ""


class Patient(msgspec.Struct, frozen=True):
    """What is looked at. `must_run`: no node in the folder is a failure."""

    config: Config
    must_run: bool = False

    @property
    def folder(self) -> Path:
        """The data folder, which need not be there yet."""
        return Path(self.config.node.data)

    @property
    def logs(self) -> int:
        """How many logs a new node gets there."""
        from weir.server.disk.node_folder import default_logs

        return self.config.node.logs or default_logs()

    @property
    def shards(self) -> int:
        """How many shards a node runs there."""
        from weir.server.disk.node_folder import NodeFolder

        founded = NodeFolder(self.folder).founded()
        logs = founded.logs if founded else self.logs
        return min(self.config.node.shards or os.cpu_count() or 1, logs)

    @property
    def place(self) -> Path:
        """The nearest folder that is there: the one whose disk will be used."""
        whole = self.folder.absolute()
        return next(path for path in (whole, *whole.parents) if path.is_dir())


def running(patient: Patient) -> tuple[str, int] | None:
    """Return the URL and the process of the node that runs on the folder, if one does."""
    from urllib.parse import quote

    from weir.cli.access.contexts import address_in_use
    from weir.client.connection.credentials import split_user
    from weir.server.disk.node_folder import NodeFolder

    place = NodeFolder(patient.folder).endpoint()
    if place is None or not Path(f"/proc/{place.pid}").exists():
        return None
    host = f"[{place.host}]" if ":" in place.host else place.host
    _, user = split_user(address_in_use())
    named = f"{quote(user, safe='')}@" if user else ""
    return f"weir://{named}{host}:{place.port}", place.pid
