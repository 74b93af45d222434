"""A host of one Raft node in rehearsals: its disk forgets, its state machine is a CRC."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from zlib import crc32

import weir_raft as raft
from weir_raft.testing.checks import Checks


class Actor:
    """A host of one node: its disk, what is not synced yet, and a state machine that is a CRC."""

    def __init__(
        self,
        config: raft.Config,
        checks: Checks,
        post: Callable[[Iterable[raft.Message]], None],
        kept_entries: int,
        post_link: Callable[[int, int, raft.LinkMessage], None] | None = None,
    ) -> None:
        self.id = config.id
        self._config = config
        self._checks = checks
        self._post = post
        self._kept_entries = kept_entries
        # Given: heartbeats go by link, as those of a host of many groups do.
        self._post_link = post_link
        self.disk = raft.MemoryStorage()
        self.node: raft.Node
        self.up = False

    def start(self) -> None:
        """Come up on what the disk holds."""
        snapshot = self.disk.snapshot()
        self.applied = snapshot.index if snapshot else 0
        self.crc = 0
        if snapshot is not None:
            self.take_state(snapshot)
        self.kept: dict[int, int] = {self.applied: self.crc}
        self.unsynced: list[raft.Ready] = []
        self.multi = raft.Multi(lambda group, member: member)
        context = None if self._post_link is None else self.multi.context(0)
        self.node = raft.Node(self._config, self.disk, context)
        if self._post_link is not None:
            self.multi.add(0, self.node)
        self.up = True

    def check_by(self, checks: Checks) -> None:
        """Let others check what this node does from here on."""
        self._checks = checks

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass."""
        if self._post_link is None:
            self.node.tick(elapsed_ms)
        else:
            self.multi.tick(elapsed_ms)

    def crash(self, dice: random.Random) -> None:
        """Lose all that is not synced but for the first few writes, the last of them in part."""
        whole = dice.randint(0, len(self.unsynced))
        for ready in self.unsynced[:whole]:
            self._write(ready)
        if whole < len(self.unsynced):
            torn = self.unsynced[whole]
            if torn.snapshot is None:
                self.disk.save(torn.hard_state, torn.entries[: dice.randint(0, len(torn.entries))])
        self.up = False

    def _write(self, ready: raft.Ready) -> None:
        self.disk.save(ready.hard_state, ())
        if ready.snapshot is not None:
            self.disk.install(ready.snapshot)
        self.disk.save(None, ready.entries)

    def sync(self, count: int) -> None:
        """Make the first `count` writes durable."""
        for ready in self.unsynced[:count]:
            self._write(ready)
            self.node.persisted(ready.number)
        del self.unsynced[:count]

    def change(self, change: raft.Change) -> None:
        """Begin to change the configuration."""
        self.node.change(change)

    def serve(self) -> None:
        """Do what the node is ready for, but leave the writes to sync()."""
        if self._post_link is not None:
            self.multi.take_active()
        self._serve()
        if self._post_link is not None:
            for peer, beat in self.multi.take_beats():
                self._post_link(self.id, peer, beat)
            self._serve()

    def _serve(self) -> None:
        while self.node.has_ready:
            ready = self.node.ready()
            self._post(ready.messages)
            if ready.became_leader:
                self._checks.elected(self.id, self.node, ready.became_leader.term)
                self.leads(ready.became_leader)
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
            for entry in ready.entries:
                self._checks.appended(self.node, entry)
                self.keeps(entry)
            if ready.must_persist:
                self.unsynced.append(ready)
            for entry in ready.committed:
                assert entry.index == self.applied + 1
                self.applied = entry.index
                self.crc = crc32(repr((entry.index, entry.term, entry.data)).encode(), self.crc)
                self.kept[entry.index] = self.crc
                self.applies(entry)
                self._checks.applied(entry.index, entry.term, self.crc)
                self.node.applied(entry.index)
            self._checks.served(ready.reads)
            for load in ready.loads:
                found = self.disk.entries(load.lo, load.hi, load.max_bytes)
                self.node.loaded(load.number, found)
            for voter in ready.wants_snapshot:
                self._offer(voter)

    def leads(self, leadership: raft.Leadership) -> None:
        """It was elected, and has proposed nothing yet."""

    def keeps(self, entry: raft.Entry) -> None:
        """An entry goes into its log, in place of what was there and behind."""

    def applies(self, entry: raft.Entry) -> None:
        """An entry is committed."""

    def state(self, index: int) -> bytes:
        """What a snapshot as of `index` holds."""
        return self.kept[index].to_bytes(4, "little")

    def take_state(self, snapshot: raft.Snapshot) -> None:
        """Become what a snapshot holds."""
        assert isinstance(snapshot.data, bytes | bytearray)
        self.crc = int.from_bytes(snapshot.data[:4], "little")

    def _restore(self, snapshot: raft.Snapshot) -> None:
        self.applied = snapshot.index
        self.take_state(snapshot)
        self.kept = {self.applied: self.crc}
        self._checks.applied(self.applied, snapshot.term, self.crc)

    def _offer(self, voter: int) -> None:
        self.node.send_snapshot(voter, self._snapshot(self.node.log.applied))

    def _snapshot(self, index: int) -> raft.Snapshot:
        node = self.node
        base = max(node.log.first_index - 1, index - self._kept_entries)
        return raft.Snapshot(
            index,
            node.log.term(index),
            self.state(index),
            node.history.at(index),
            base,
            node.log.term(base),
        )

    def compact(self) -> None:
        """Take a snapshot and drop what lies below its base."""
        node = self.node
        index = node.log.applied
        if self.disk.last_index() < index or index < node.log.first_index:
            return
        if any(ready.snapshot is not None for ready in self.unsynced):
            return
        snapshot = self._snapshot(index)
        self.disk.save_snapshot(snapshot)
        node.compact(snapshot.base_index)
        self.disk.discard(snapshot.base_index)
