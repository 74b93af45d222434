"""Certificates of a CA that a test has for itself, valid or not, and nodes that serve with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from weir.server.assembly import serve
from weir.server.config import (
    AccessConfig,
    Config,
    LinksConfig,
    LogConfig,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
    TlsConfig,
)
from weir.server.disk.node_folder import NodeFolder
from weir.server.network.certificate_files import CertificateFiles
from weir.tls.authority import Issued, begun, opened
from weir.tls.files import ClientFiles, ServerFiles
from weir.tls.identity import parse_identity

#: A method that tests wrap, for `monkeypatch.setattr`.
LOAD_FILES = CertificateFiles, "_load"

#: One CA and its certificates cost some milliseconds each; a test shares none with another.
SYSTEM = 0xABC


class TestCa:
    """A CA in a folder."""

    __test__ = False

    def __init__(self, folder: Path, system: int = SYSTEM, days_ahead: float = 0.0) -> None:
        """Begin it, by a clock that is so many days ahead."""
        self.folder = folder
        self.system = system
        self._ahead = timedelta(days=days_ahead)
        with begun(folder, system, now=lambda: datetime.now(UTC) - timedelta(days=1)) as ca:
            self.bundle = str(ca.bundle)

    def issue(
        self, who: str, *hosts: str, days_ahead: float = 0.0, days: int = 10, brokerset: int = 0
    ) -> Issued:
        """Issue to `node/1`, `user/default/anna` or `device/7/0`, as of some days from now."""
        identity = parse_identity(f"weir://{self.system:x}/{brokerset}/{who}")
        if who.startswith("node") and not hosts:
            hosts = ("127.0.0.1", "localhost")
        with opened(self.folder, lambda: datetime.now(UTC) + timedelta(days=days_ahead)) as ca:
            return ca.issue(identity, hosts, days)

    def become(self, system: int) -> None:
        """Issue to another system from now on, by the same CA."""
        record = self.folder / "authority.json"
        record.write_text(record.read_text().replace(f'"{self.system:x}"', f'"{system:x}"'))
        self.system = system

    def files(self, issued: Issued, revoked: str = "") -> ServerFiles:
        """Return what a broker serves with."""
        return ServerFiles(str(issued.certificate), str(issued.key), self.bundle, revoked)

    def files_of(self, certificate: Path) -> ServerFiles:
        """Return what a broker serves with, by its certificate's file."""
        return ServerFiles(str(certificate), str(certificate.with_suffix(".key")), self.bundle)

    def client(self, issued: Issued | None = None, server_name: str = "") -> ClientFiles:
        """Return what a client connects with."""
        if issued is None:
            return ClientFiles(self.bundle, server_name=server_name)
        return ClientFiles(self.bundle, str(issued.certificate), str(issued.key), server_name)

    def url(self, port: int, issued: Issued | None = None, host: str = "127.0.0.1") -> str:
        """Return the URL of a node with what this CA gives."""
        with_key = f"&certificate={issued.certificate}&key={issued.key}" if issued else ""
        return f"weirs://{host}:{port}?ca={self.bundle}{with_key}"


@contextlib.asynccontextmanager
async def node_running(
    folder: Path,
    files: ServerFiles | None = None,
    links: Any = "off",
    metrics: str = "",
    key_file: str = "",
    **tls: Any,
) -> AsyncIterator[int]:
    """Run a node of one shard on this loop, and yield its port."""
    loop = asyncio.get_running_loop()
    up: asyncio.Future[int] = loop.create_future()
    stop = asyncio.Event()
    given = TlsConfig(*files, **tls) if files is not None else TlsConfig(**tls)
    config = Config(
        node=NodeConfig(data=str(folder), port=0, shards=1, logs=2),
        log=LogConfig(segment_mib=32, spares=0),
        memory=MemoryConfig(),
        tls=given,
        links=LinksConfig(links),
        metrics=MetricsConfig(metrics),
        access=AccessConfig(key_file=key_file),
    )
    NodeFolder(folder).found(2)
    running = loop.create_task(serve(config, lambda _, port: up.set_result(port), stop))
    try:
        await asyncio.wait({up, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield up.result()
    finally:
        stop.set()
        await running
