"""A running node takes new files, whatever becomes of the process that copies them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weir
from rigs.certificates import LOAD_FILES, SYSTEM, TestCa, node_running
from rigs.clients import pool_of
from weir.server.network import certificate_files
from weir.server.network.certificate_files import ASKED, CertificateState, states
from weir.tls.authority import Issued, opened
from weir.tls.files import BadCertificate, ServerFiles, ServerTls, server_tls


class Copied:
    """A CA, and the files of a node, which are copies."""

    def __init__(self, folder: Path) -> None:
        self.ca = TestCa(folder / "ca")
        self.issued = self.ca.issue("node/1")
        self.data = folder / "data"
        self.at = folder / "etc"
        self.at.mkdir()
        self.files = ServerFiles(
            *(str(self.at / name) for name in ("node.pem", "node.key", "ca.pem", "revoked.txt"))
        )
        self.copy()

    def copy(self) -> None:
        shutil.copy(self.issued.certificate, self.files.certificate)
        shutil.copy(self.issued.key, self.files.key)
        shutil.copy(self.ca.bundle, self.files.trust)

    def renew(self) -> Issued:
        with opened(self.ca.folder) as ca:
            self.issued = ca.renew("node-1")
        return self.issued

    async def until(self, serial: str = "", problem: str = "") -> CertificateState:
        """Return what the node says once it serves that, or says that it cannot."""
        async with asyncio.timeout(20):
            while True:
                state = states(self.data).get(0)
                is_so = state is not None and serial in ("", state.serial)
                # Of half a copy it may say before that, too, that the file is empty.
                said = state.problem if state is not None else ""
                if state is not None and is_so and (problem in said if problem else not said):
                    return state
                await asyncio.sleep(0.02)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """Return them; the node looks often."""
    monkeypatch.setattr("weir.server.disk.node_folder.new_system", lambda: SYSTEM)
    monkeypatch.setattr(certificate_files, "_LOOK_SECONDS", 0.02)
    return Copied(tmp_path)


async def serial_of(copied: Copied, port: int) -> str:
    async with weir.connect(copied.ca.url(port)) as w:
        home = pool_of(w).home
        assert home is not None
        assert home.peer is not None
        return home.peer.serial


#: Copies half of a file, as `cp` does that is killed.
HALF = """
import os, signal, sys
whole = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "wb") as file:
    file.write(whole[: len(whole) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_copy_that_is_killed_changes_nothing_until_it_is_done_again(copied: Copied) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), node_running(copied.data, copied.files) as port:
            first = copied.issued.serial
            assert await serial_of(copied, port) == first
            async with weir.connect(copied.ca.url(port)) as w:
                await w.create_topic("doors")
                for half in ("certificate", "key"):
                    new = copied.renew()
                    whole = getattr(new, half)
                    args = [sys.executable, "-c", HALF, str(whole), getattr(copied.files, half)]
                    done = await asyncio.to_thread(subprocess.run, args, check=False)
                    assert done.returncode == -signal.SIGKILL
                    state = await copied.until(problem="cannot be read")
                    assert state.serial == first
                    assert await serial_of(copied, port) == first
                    copied.copy()
                    await copied.until(new.serial)
                    assert await serial_of(copied, port) == new.serial
                    first = new.serial
                await w.publish("doors", b"open")  # who is connected has noticed nothing

    asyncio.run(body())


def test_a_certificate_whose_key_comes_later_waits_for_it(copied: Copied) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), node_running(copied.data, copied.files) as port:
            first = copied.issued.serial
            new = copied.renew()
            shutil.copy(new.certificate, copied.files.certificate)
            await copied.until(first, problem="key of another certificate")
            assert await serial_of(copied, port) == first
            shutil.copy(new.key, copied.files.key)
            await copied.until(new.serial)
            assert await serial_of(copied, port) == new.serial

    asyncio.run(body())


def test_a_file_that_goes_while_it_is_read_is_read_again(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that reads them ended, and with it what ends sessions of the revoked."""
    honest, failures = getattr(*LOAD_FILES), [FileNotFoundError("node.key")]

    def load(self: certificate_files.CertificateFiles) -> Any:
        if failures and Path(copied.files.certificate).read_bytes() != first_bytes:
            raise failures.pop()
        return honest(self)

    first_bytes = Path(copied.files.certificate).read_bytes()
    monkeypatch.setattr(*LOAD_FILES, load)

    async def body() -> None:
        async with asyncio.timeout(60), node_running(copied.data, copied.files) as port:
            copied.renew()
            copied.copy()
            await copied.until(problem="node.key")
            newer = copied.renew()
            copied.copy()
            await copied.until(newer.serial)
            assert await serial_of(copied, port) == newer.serial

    asyncio.run(body())


def test_an_operator_who_asks_is_answered_with_his_own_word(copied: Copied) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), node_running(copied.data, copied.files):
            (copied.data / ASKED).write_text("now", encoding="utf-8")
            while (await copied.until(copied.issued.serial)).asked != "now":
                await asyncio.sleep(0.02)

    asyncio.run(body())


def test_files_that_stay_are_read_once(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read them costs milliseconds and a handshake."""
    read: list[ServerFiles] = []

    def reads(files: ServerFiles, *given: Any) -> ServerTls:
        read.append(files)
        return server_tls(files, *given)

    monkeypatch.setattr(certificate_files, "server_tls", reads)

    async def body() -> None:
        async with asyncio.timeout(60), node_running(copied.data, copied.files):
            await asyncio.sleep(0.3)
            assert len(read) == 1
            copied.renew()
            copied.copy()
            await copied.until(copied.issued.serial)
            assert 2 <= len(read) <= 5, "once for each file that was copied, at most"

    asyncio.run(body())


def test_who_is_revoked_is_let_go_and_others_stay(copied: Copied) -> None:
    anna, otto = (copied.ca.issue(f"user/default/{name}") for name in ("anna", "otto"))

    async def body() -> None:
        async with (
            asyncio.timeout(60),
            node_running(copied.data, copied.files) as port,
            weir.connect(copied.ca.url(port, anna)) as w,
            weir.connect(copied.ca.url(port, otto)) as other,
        ):
            over = [home.over for c in (w, other) if (home := pool_of(c).home) is not None]
            Path(copied.files.revoked).write_text(anna.serial, encoding="utf-8")
            await over[0].wait()
            assert not over[1].is_set()

    asyncio.run(body())


def test_a_node_does_not_start_with_what_it_cannot_serve(copied: Copied) -> None:
    os.truncate(copied.files.key, 50)

    async def body() -> None:
        async with node_running(copied.data, copied.files):
            pass

    with pytest.raises(BadCertificate, match="cannot be read"):
        asyncio.run(body())


def test_a_node_without_tls_says_nothing_of_an_old_certificate(copied: Copied) -> None:
    async def body(files: ServerFiles | None) -> None:
        async with asyncio.timeout(60), node_running(copied.data, files):
            assert list(states(copied.data)) == ([0] if files else [])

    asyncio.run(body(copied.files))
    (copied.data / "tls-3.json").write_bytes((copied.data / "tls-0.json").read_bytes())
    asyncio.run(body(copied.files))
    asyncio.run(body(None))
