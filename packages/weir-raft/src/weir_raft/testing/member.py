"""One member of a group whose others are played by a test: messages in, messages out."""

from __future__ import annotations

from collections.abc import Sequence

import weir_raft as raft


def log_of(*terms: int, first: int = 1) -> tuple[raft.Entry, ...]:
    """Entries of ten bytes each, from index `first` on, by their terms."""
    kind = raft.EntryKind.NORMAL
    return tuple(
        raft.Entry(i, term, kind, f"{i}@{term}", 10) for i, term in enumerate(terms, first)
    )


class Member:
    """A node over a disk that holds a log of `terms` and a vote.

    With `prompt` all it writes is durable at once; else when sync() is called.
    """

    def __init__(
        self,
        id: int,
        *terms: int,
        term: int = 0,
        vote: int = 0,
        voters: tuple[int, ...] = (1, 2, 3),
        prompt: bool = True,
        **config: int,
    ) -> None:
        self.disk = raft.MemoryStorage()
        hard_state = raft.HardState(max(term, *terms, 0), vote)
        self.disk.save(hard_state, log_of(*terms))
        self._config = raft.Config(id, voters, **config)  # type: ignore[arg-type]
        self._prompt = prompt
        self.restart()

    def restart(self) -> None:
        """Begin again with what the disk holds."""
        self.node = raft.Node(self._config, self.disk)
        self._unsynced: list[raft.Ready] = []
        self.applied: list[raft.Entry] = []
        self.reads: list[raft.ReadState] = []
        self.lost: list[raft.Ready] = []

    @property
    def terms(self) -> list[int]:
        """The terms of the durable log."""
        last = self.disk.last_index()
        return [self.disk.term(index) for index in range(1, last + 1)]

    def tell(self, *messages: raft.Message) -> list[raft.Message]:
        """Take messages; what it sends for them."""
        for message in messages:
            self.node.step(message)
        return self.sent()

    def pass_ms(self, milliseconds: int) -> list[raft.Message]:
        """Let time pass in steps of 50; what it sends meanwhile."""
        sent: list[raft.Message] = []
        for _ in range(0, milliseconds, 50):
            self.node.tick(50)
            sent += self.sent()
        return sent

    def sent(self) -> list[raft.Message]:
        """Serve the node; what it sends."""
        sent: list[raft.Message] = []
        while self.node.has_ready:
            ready = self.node.ready()
            sent += ready.messages
            self.applied += ready.committed
            self.reads += ready.reads
            if ready.lost_leadership:
                self.lost.append(ready)
            if ready.must_persist:
                self._unsynced.append(ready)
            if ready.committed:
                self.node.applied(ready.committed[-1].index)
            if self._prompt:
                self._write()
        return sent

    def _write(self) -> None:
        for ready in self._unsynced:
            self.disk.save(ready.hard_state, ())
            if ready.snapshot is not None:
                self.disk.install(ready.snapshot)
            self.disk.save(None, ready.entries)
            self.node.persisted(ready.number)
        self._unsynced.clear()

    def sync(self) -> list[raft.Message]:
        """Make durable all that was written; what it sends then."""
        self._write()
        return self.sent()

    def stand(self, granted_by: Sequence[int] = (2,)) -> list[raft.Message]:
        """Campaign, and be told by `granted_by` that they would vote; what it asks for then."""
        self.node.campaign()
        self.sent()
        term = self.node.term + 1
        for voter in granted_by:
            self.node.step(raft.VoteReply(self._config.id, voter, term, granted=True, pre=True))
        return self.sent()

    def lead(self, granted_by: Sequence[int] = (2,)) -> list[raft.Message]:
        """Win an election by the votes of `granted_by`; what it sends as a leader."""
        self.stand(granted_by)
        self.sync()
        for voter in granted_by:
            self.node.step(raft.VoteReply(self._config.id, voter, self.node.term, granted=True))
        sent = self.sent()
        assert self.node.role is raft.Role.LEADER, "not elected"
        return sent
