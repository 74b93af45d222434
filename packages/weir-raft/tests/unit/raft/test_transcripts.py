"""Runs tests/transcripts/raft/*.txt: a command, `----`, what it must print, an empty line.

Lines before the first command, starting with #, say what the scenario shows. WEIR_REWRITE=1 writes
what was printed into the files instead of comparing; read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rigs.descriptions import describe_entry, describe_node, describe_ready
from weir_raft import Config, Entry, EntryKind, MemoryStorage, Node, RaftError, Ready, Snapshot

FOLDER = Path(__file__).parents[2] / "transcripts" / "raft"
FILES = sorted(FOLDER.glob("*.txt"))


class Scene:
    """One node and its disk, moved by the commands of a transcript."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._asked: dict[int, Ready] = {}
        self._node: Node

    def run(self, line: str) -> str:
        name, *words = line.split()
        command: Callable[..., str] = getattr(self, f"do_{name.replace('-', '_')}")
        try:
            return command(*words)
        except RaftError as error:
            return f"{type(error).__name__}: {error}"

    def do_start(self, *fields: str) -> str:
        """start [field=value...]: a node over the disk as it is, so also a restart."""
        values = {name: int(value) for name, value in (field.split("=") for field in fields)}
        self._asked.clear()
        self._node = Node(Config(id=1, voters=(1,), **values), self._storage)
        return self.do_state()

    def do_start_among(self, *voters: str) -> str:
        Node(Config(id=1, voters=tuple(map(int, voters))), MemoryStorage())
        return "ok"

    def do_state(self) -> str:
        return describe_node(self._node)

    def do_campaign(self) -> str:
        self._node.campaign()
        return self.do_state()

    def do_tick(self) -> str:
        self._node.tick()
        return self.do_state()

    def do_propose(self, *items: str) -> str:
        return "\n".join(f"index {self._node.propose(item, len(item))}" for item in items)

    def do_raise_fence(self, value: str) -> str:
        self._node.raise_fence(int(value))
        return f"fence {self._node.fence}"

    def do_ready(self) -> str:
        if not self._node.has_ready:
            return "nothing"
        ready = self._node.ready()
        self._asked[ready.number] = ready
        return describe_ready(ready)

    def do_sync(self, *numbers: str) -> str:
        """sync NUMBER...: make Readies durable and acknowledge them."""
        for number in map(int, numbers):
            # First, so that a refused acknowledgement leaves the disk as it was.
            self._node.persisted(number)
            self._storage.save(self._asked[number].hard_state, self._asked[number].entries)
        return f"commit {self._node.log.committed}"

    def do_write(self, number: str) -> str:
        """write NUMBER: reaches the disk, but its acknowledgement is never given."""
        self._storage.save(self._asked[int(number)].hard_state, self._asked[int(number)].entries)
        return "ok"

    def do_applied(self, index: str) -> str:
        self._node.applied(int(index))
        return f"applied {self._node.log.applied}"

    def do_snapshot(self, index: str) -> str:
        self._storage.save_snapshot(Snapshot(int(index), self._node.log.term(int(index)), None))
        return "ok"

    def do_compact(self, index: str) -> str:
        self._node.compact(int(index))
        self._storage.discard(int(index))
        return self.do_state()

    def do_disk(self) -> str:
        snapshot, last = self._storage.snapshot(), self._storage.last_index()
        state = self._storage.hard_state()
        lines = [f"term={state.term} vote={state.vote} last={last}"]
        first = snapshot.index + 1 if snapshot else 1
        if first <= last:
            entries = self._storage.entries(first, last + 1, 1 << 20)
            lines += [f"{describe_entry(entry)} {_show(entry)}".rstrip() for entry in entries]
        return "\n".join(lines)


def _show(entry: Entry) -> str:
    return str(entry.data) if entry.kind is EntryKind.NORMAL else ""


def replay(text: str) -> str:
    """The transcript with what its commands print now."""
    scene, blocks = Scene(), []
    for block in text.strip().split("\n\n"):
        notes = [line for line in block.splitlines() if line.startswith("#")]
        rest = [line for line in block.splitlines() if not line.startswith("#")]
        if rest:
            notes += [rest[0], "----", scene.run(rest[0])]
        blocks.append("\n".join(notes))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    printed = replay(text)
    if os.environ.get("WEIR_REWRITE") == "1":
        path.write_text(printed)
    else:
        assert printed == text


def test_there_are_transcripts_and_a_wrong_one_is_noticed() -> None:
    assert FILES
    right = replay("start\n----\n")
    wrong = right.replace("follower", "leader")
    assert wrong != right
    assert replay(wrong) == right
