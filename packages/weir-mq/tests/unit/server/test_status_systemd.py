"""What systemd is told, at a socket of our own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from weir.server.status import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd opens it, and its NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@weir-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(name.replace("@", "\0"))
        one.settimeout(10)
        yield one, name


def test_the_life_of_a_node(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
        notifier.ready("serving")
        assert heard.recv(1024) == b"READY=1\nSTATUS=serving"
        notifier.status("busy")
        assert heard.recv(1024) == b"STATUS=busy"
        notifier.stopping(10.0)
        words = heard.recv(1024).split(b"\n")
        assert words == [b"STOPPING=1", b"STATUS=draining", b"EXTEND_TIMEOUT_USEC=10000000"]


def test_a_loop_that_turns_answers_the_watchdog(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager

    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        with closing(Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"})) as notifier:
            notifier.ready("serving")
            return [await loop.run_in_executor(None, heard.recv, 1024) for _ in range(4)]

    assert asyncio.run(run())[1:] == [b"WATCHDOG=1"] * 3


def test_a_watchdog_of_another_process_is_not_answered(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}

    async def run() -> None:
        with closing(Notifier(environment)) as notifier:
            notifier.ready("serving")
            notifier.status("last")

    asyncio.run(run())
    assert [heard.recv(1024)[:6], heard.recv(1024)] == [b"READY=", b"STATUS=last"]


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "absent")}):
        with closing(Notifier(environment)) as notifier:
            notifier.stopping(1.0)
