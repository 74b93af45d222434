"""The example of docs/RAFT.md as three processes, and its leader killed."""

from __future__ import annotations

import asyncio
import importlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "raft_kv.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    return importlib.import_module("raft_kv")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on just now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Three:
    """Three processes of the example."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.addresses = {id: ("127.0.0.1", port) for id, port in enumerate(free_ports(3), 1)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for id in self.addresses:
            self.start(id)

    @property
    def nodes(self) -> str:
        return ",".join(f"{id}={host}:{port}" for id, (host, port) in self.addresses.items())

    def start(self, id: int) -> None:
        command = [sys.executable, EXAMPLE, "serve", self.nodes, str(id), self._folder]
        self._processes[id] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self, id: int) -> None:
        process = self._processes.pop(id)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for id in list(self._processes):
            self.kill(id)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    three = Three(tmp_path)
    yield three
    three.kill_all()


async def leader(example: ModuleType, three: Three) -> int:
    """Who leads, once somebody does."""
    async with asyncio.timeout(60):
        while True:
            for id, address in three.addresses.items():
                try:
                    if await example.ask(address, "role") == ["leader"]:
                        return id
                except (OSError, EOFError):
                    continue
            await asyncio.sleep(0.05)


@pytest.mark.timeout(240)
def test_what_was_set_survives_the_leader_and_then_everybody(
    example: ModuleType, three: Three
) -> None:
    async def ask(*words: str) -> list[str]:
        answer: list[str] = await example.ask_leader(three.addresses, *words)
        return answer

    async def story() -> None:
        for number in range(20):
            assert await ask("set", f"key{number}", f"value {number}") == ["ok"]
        first = await leader(example, three)
        three.kill(first)
        assert await ask("get", "key19") == ["value", "value 19"]
        assert await ask("set", "key0", "after the first leader") == ["ok"]
        assert await leader(example, three) != first
        three.start(first)
        three.kill_all()
        for id in three.addresses:
            three.start(id)
        assert await ask("get", "key0") == ["value", "after the first leader"]
        for number in range(1, 20):
            assert await ask("get", f"key{number}") == ["value", f"value {number}"]
        assert await ask("get", "never set") == ["value", ""]

    asyncio.run(story())
    # As a user does it.
    command = [sys.executable, EXAMPLE, "ask", three.nodes, "get", "key7"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    assert printed.stdout == "value value 7\n"
