"""Runs tests/transcripts/raft_groups/*.txt: a command, `----`, what it must print, an empty line.

A command acts on the node it names, whose disk is done at once. `round` delivers what is under way,
`flow` goes on with that until nothing moves, `pass MS` lets time pass too; each prints what arrived
or was lost, and then every node whose state has changed. Heartbeats are not printed, unless `round`
delivers them.

Lines before a command, starting with #, say what it shows. WEIR_REWRITE=1 writes what was printed
into the files instead of comparing; read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import weir_raft as raft
from rigs.descriptions import describe_message
from weir_raft.testing.rehearsal import Beaten, Rehearsal

FOLDER = Path(__file__).parents[2] / "transcripts" / "raft_groups"
FILES = sorted(FOLDER.glob("*.txt"))
BEATS = (raft.Heartbeat, raft.HeartbeatReply)


class Told(Rehearsal):
    """A group that tells what happens in it."""

    lines: list[str]
    beats = False

    def post(self, messages: Iterable[raft.Message]) -> None:
        for message in messages:
            if (message.sender, message.to) in self.severed:
                self._tell(message, "lost: ")
            else:
                self.mail.append(message)

    def hand_over(self, message: raft.Message | Beaten) -> None:
        assert not isinstance(message, Beaten)
        lost = not self.actors[message.to].up or (message.sender, message.to) in self.severed
        self._tell(message, "lost: " if lost else "")
        super().hand_over(message)

    def _tell(self, message: raft.Message, prefix: str) -> None:
        if self.beats or not isinstance(message, BEATS):
            self.lines.append(prefix + describe_message(message))


class Scene:
    """A group moved by the commands of a transcript."""

    def __init__(self) -> None:
        self._group: Told
        self._seen: dict[int, str] = {}
        self._reads = 0

    def run(self, line: str) -> str:
        name, *words = line.split()
        command: Callable[..., None] = getattr(self, f"do_{name}")
        if name == "start":
            command(*words)
        else:
            self._group.lines.clear()
            self._group.beats = name == "round"
            try:
                command(*words)
            except raft.RaftError as error:
                self._group.lines.append(f"{type(error).__name__}: {error}")
        return "\n".join([*self._group.lines, *self._changes()]) or "ok"

    def _changes(self) -> list[str]:
        lines = []
        for id, actor in self._group.actors.items():
            state = self._state(id) if actor.up else f"{id} is down"
            if self._seen.get(id) != state:
                lines.append(state)
            self._seen[id] = state
        return lines

    def _state(self, id: int) -> str:
        node, disk = self._group.actors[id].node, self._group.actors[id].disk
        log = range(node.log.first_index, disk.last_index() + 1)
        entries = " ".join(f"{index}@{disk.term(index)}" for index in log) or "empty"
        who = node.configuration
        names = [("voters", who.voters), ("outgoing", who.outgoing), ("learners", who.learners)]
        members = [f"{name}={','.join(map(str, ids))}" for name, ids in names if ids]
        return (
            f"{id} {node.role.value} term={node.term} leader={node.leader} "
            f"commit={node.log.committed} applied={node.log.applied} "
            f"{' '.join(members)} log: {entries}"
        )

    def _node(self, id: str) -> raft.Node:
        return self._group.actors[int(id)].node

    def _serve(self) -> None:
        for actor in self._group.actors.values():
            if actor.up:
                actor.serve()
                actor.sync(len(actor.unsynced))
                actor.serve()

    def do_start(self, *words: str) -> None:
        """start VOTER... [spare=ID,...] [kept=ENTRIES] [limit=VALUE...]"""
        voters = [int(word) for word in words if "=" not in word]
        fields = dict(word.split("=") for word in words if "=" in word)
        spare = [int(id) for id in fields.pop("spare", "").split(",") if id]
        kept = int(fields.pop("kept", 0))
        limits = {name: int(value) for name, value in fields.items()}
        self._group = Told(0, voters, spare, kept, **limits)
        self._group.lines = []
        served = self._group.checks.served

        def told(reads: Iterable[raft.ReadState]) -> None:
            reads = list(reads)
            for read in reads:
                self._group.lines.append(f"read {read.context} may be served at {read.index}")
            served(reads)

        self._group.checks.served = told  # type: ignore[method-assign]

    def do_campaign(self, id: str) -> None:
        self._node(id).campaign()
        self._serve()

    def do_propose(self, id: str, *sizes: str) -> None:
        """propose ID BYTES...: an entry of each size."""
        for size in sizes:
            self._node(id).propose(f"{size} bytes", int(size))
        self._serve()

    def do_change(self, id: str, *words: str) -> None:
        """change ID [add=ID,...] [learn=ID,...] [remove=ID,...]"""
        fields = dict(word.split("=") for word in words)
        parts = [
            tuple(int(id) for id in fields.get(name, "").split(",") if id)
            for name in ("add", "learn", "remove")
        ]
        self._node(id).change(raft.Change(*parts))
        self._serve()

    def do_transfer(self, id: str, to: str) -> None:
        self._node(id).transfer_leadership(int(to))
        self._serve()

    def do_read(self, id: str) -> None:
        self._reads += 1
        self._group.checks.asked[self._reads] = self._group.checks.committed_through
        self._node(id).read_index(self._reads)
        self._serve()

    def do_compact(self, id: str) -> None:
        self._group.actors[int(id)].compact()

    def do_distant(self, id: str) -> None:
        """What is on this node's disk only is not at hand in memory."""

        def cached(lo: int, hi: int, max_bytes: int) -> None:
            self._group.lines.append(f"node {id} must read {lo} to {hi - 1} from its disk")

        self._group.actors[int(id)].disk.cached = cached  # type: ignore[method-assign,assignment]

    def do_cut(self, id: str, *others: str) -> None:
        """cut ID OTHER...: nothing passes between them, either way."""
        for other in map(int, others):
            self._group.severed |= {(int(id), other), (other, int(id))}

    def do_heal(self) -> None:
        self._group.severed.clear()

    def do_crash(self, id: str) -> None:
        self._group.actors[int(id)].crash(self._group.dice)

    def do_restart(self, id: str) -> None:
        self._group.actors[int(id)].start()

    def do_drop(self) -> None:
        """All that is under way is lost."""
        self._group.mail.clear()

    def do_round(self) -> None:
        mail, self._group.mail = self._group.mail, []
        for message in mail:
            self._group.hand_over(message)
        self._serve()

    def do_flow(self) -> None:
        self._group.flow()

    def do_wait(self, milliseconds: str) -> None:
        """Time passes while nobody looks at the clock."""
        for actor in self._group.actors.values():
            actor.node.core.node_state.clock.now += int(milliseconds)

    def do_pass(self, milliseconds: str) -> None:
        self._group.pass_ms(int(milliseconds))


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
def test_group_transcript(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    printed = replay(text)
    if os.environ.get("WEIR_REWRITE") == "1":
        path.write_text(printed, encoding="utf-8")
    else:
        assert printed == text


def test_there_are_group_transcripts_and_a_wrong_one_is_noticed() -> None:
    assert FILES
    right = replay("start 1 2 3\n\ncampaign 1\n\nflow\n")
    assert "1 leader term=1" in right
    assert replay(right.replace("1 leader", "1 follower")) == right
