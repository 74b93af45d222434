"""The certificate of a running node: its files are looked at each half second, and read again if
they changed.

What is read is built aside and tried. Where that fails, as with a file that is copied by half, the
node goes on with what it has, and says so here: in its log, its figures and `tls-N.json` of its
data folder, where N is the shard. `weir cert reload` asks for that by the file `tls-read`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from weir.server.config import TlsConfig
from weir.tls.files import BadCertificate, ServerFiles, ServerTls, server_tls

log = logging.getLogger(__name__)

#: What `weir cert reload` writes: whatever it holds stands in the answer.
ASKED = "tls-read"
#: A connection by a certificate that is revoked ends within a second.
_LOOK_SECONDS = 0.5
#: Sessions whose certificates have ended are looked for so often, and an operator is told so often.
_SWEEP_SECONDS = 5.0
_TELL_SECONDS = 3_600.0
#: An operator is warned so long before the node's certificate ends.
WARN_SECONDS = 14 * 24 * 3_600.0
_ASKED_BYTES_MAX = 64


class CertificateState(msgspec.Struct, frozen=True):
    """What a shard serves TLS with: `ends` and `read` are in seconds since 1970. `problem` says why
    the newest files are not served; `asked` is what stood in `tls-read` when they were read.
    """

    serial: str
    identity: str
    ends: float
    read: float
    asked: str = ""
    problem: str = ""


def state_file(folder: Path, shard: int) -> Path:
    """Return where a shard says what it serves TLS with."""
    return folder / f"tls-{shard}.json"


def states(folder: Path) -> dict[int, CertificateState]:
    """Return what the shards of a node say in its data folder, by number."""
    found = {}
    for file in folder.glob("tls-*.json"):
        shard = file.stem.removeprefix("tls-")
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if shard.isdecimal():
                found[int(shard)] = msgspec.json.decode(file.read_bytes(), type=CertificateState)
    return found


class Acceptor(Protocol):
    """What serves with the files: it accepts connections by TLS."""

    #: Why newer files are not served.
    problem: str

    @property
    def serving(self) -> ServerTls | None:
        """What it serves with."""

    def serve(self, serving: ServerTls) -> None:
        """Serve new handshakes with this from now on."""

    def end_sessions(self) -> None:
        """Hang up on those whose certificate has ended, or is revoked."""


class CertificateFiles:
    """Keeps an acceptor served with what the files hold."""

    def __init__(self, acceptor: Acceptor, config: TlsConfig, folder: Path, shard: int) -> None:
        """Read the files that `config` names; tell of them in `folder`."""
        files = config.files()
        assert files is not None  # else there is nothing to keep
        self._files: ServerFiles = files
        self._acceptor = acceptor
        self._config = config
        self._asked = folder / ASKED
        self._state = state_file(folder, shard)
        self._stamps: tuple[object, ...] = ()
        self._warned_at = -_TELL_SECONDS

    async def read(self) -> None:
        """Serve what the files hold. Raises `BadCertificate`."""
        # Before they are read: what changes meanwhile is read again.
        self._stamps = self._look()
        asked = self._asked_by()
        serving = await asyncio.to_thread(self._load)
        self._acceptor.serve(serving)
        self._acceptor.problem = ""
        self._tell(serving, asked)

    async def keep(self) -> None:
        """Read them again whenever they change; end sessions with their certificates."""
        swept = 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._look() != self._stamps:
                await self._read_again()
            now = time.monotonic()
            if now - swept >= _SWEEP_SECONDS:
                swept = now
                self._acceptor.end_sessions()
                self._warn(now)

    async def _read_again(self) -> None:
        asked = self._asked_by()
        before = self._acceptor.serving
        assert before is not None
        try:
            await self.read()
        except (BadCertificate, OSError) as error:
            self._acceptor.problem = str(error)
            log.warning("the node keeps its present certificate: %s", error)
            self._tell(before, asked, str(error))
            return
        serving = self._acceptor.serving
        assert serving is not None
        fields = {"serial": serving.own.serial, "ends": serving.own.ends}
        log.info(
            "serves new TLS files, certificate %s", serving.own.serial, extra={"fields": fields}
        )

    def _load(self) -> ServerTls:
        config = self._config
        return server_tls(self._files, config.minimum, config.clients == "require")

    def _look(self) -> tuple[object, ...]:
        return tuple(_stamp(Path(name)) for name in (*self._files, str(self._asked)) if name)

    def _asked_by(self) -> str:
        try:
            with self._asked.open("rb") as file:
                return file.read(_ASKED_BYTES_MAX).decode(errors="replace").strip()
        except OSError:
            return ""

    def _tell(self, serving: ServerTls, asked: str, problem: str = "") -> None:
        own = serving.own
        identity = "" if own.identity is None else str(own.identity)
        state = CertificateState(own.serial, identity, own.ends, time.time(), asked, problem)
        new = self._state.with_name(f"{self._state.name}.new")
        try:
            new.write_bytes(msgspec.json.encode(state))
            new.rename(self._state)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._state, error.strerror)

    def _warn(self, now: float) -> None:
        serving = self._acceptor.serving
        if serving is None or now - self._warned_at < _TELL_SECONDS:
            return
        left = serving.own.ends - time.time()
        if left < WARN_SECONDS:
            self._warned_at = now
            log.warning(
                "the certificate of this node %s: renew it by `weir cert renew`, and copy it here",
                f"ends in {left / 86_400:.1f} days" if left > 0 else "expired: no client connects",
                extra={"fields": {"ends": serving.own.ends}},
            )


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextlib.asynccontextmanager
async def certified(
    acceptor: Acceptor, config: TlsConfig, folder: Path, shard: int, shards: int = 1
) -> AsyncIterator[None]:
    """Serve TLS in one of so many shards while it lasts, if the configuration has a certificate.

    Raises `BadCertificate`.
    """
    if shard == 0:
        for gone in states(folder):
            if gone >= shards:  # there were more of them
                state_file(folder, gone).unlink(missing_ok=True)
    if config.files() is None:
        state_file(folder, shard).unlink(missing_ok=True)
        yield
        return
    files = CertificateFiles(acceptor, config, folder, shard)
    await files.read()
    keeping = asyncio.get_running_loop().create_task(files.keep(), name="weir certificates")
    try:
        yield
    finally:
        keeping.cancel()
