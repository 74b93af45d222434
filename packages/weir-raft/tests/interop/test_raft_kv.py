"""The example of docs/RAFT.md as three processes, and its leader killed."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from weir.testing.nodes.node_set import free_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "raft_kv.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("raft_kv", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its annotations are looked up by the module's name.
    sys.modules["raft_kv"] = module
    spec.loader.exec_module(module)
    return module


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


def test_a_journal_that_was_torn_is_read_up_to_there(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    entry = example.raft.Entry(1, 1, example.raft.EntryKind.NORMAL, ["k", "v"], 2)
    ready = example.raft.Ready(1, example.raft.HardState(1, 1), (entry,), (), None)
    journal = example.Journal(path)
    journal.write([ready])
    journal.close()
    whole = path.read_bytes()
    for torn in range(len(whole)):
        path.write_bytes(whole + whole[:torn])
        journal = example.Journal(path)
        journal.close()
        storage = journal.storage
        assert storage.hard_state() == ready.hard_state
        assert list(storage.entries(1, 2, 100)) == [entry]
        assert path.read_bytes() == whole
