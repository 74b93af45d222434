"""A host for one lone voter with every step in the test's hands, and groups of several."""

from __future__ import annotations

from weir_raft import Config, Entry, MemoryStorage, Node, Ready


class Lone:
    """Node 1, its storage, and what it was asked to write but has not yet made durable."""

    def __init__(self, storage: MemoryStorage | None = None, **config: int) -> None:
        self.storage = storage or MemoryStorage()
        self.config = config
        self.node = Node(Config(id=1, voters=(1,), **config), self.storage)
        self.unsynced: list[Ready] = []
        self.applied: list[Entry] = []

    def take(self) -> Ready:
        """Take one Ready and apply what it commits; what it writes waits for sync()."""
        ready = self.node.ready()
        if ready.must_persist:
            self.unsynced.append(ready)
        if ready.committed:
            self.applied += ready.committed
            self.node.applied(ready.committed[-1].index)
        return ready

    def sync(self) -> None:
        """Make all that was written durable, and say so."""
        for ready in self.unsynced:
            self.storage.save(ready.hard_state, ready.entries)
            self.node.persisted(ready.number)
        self.unsynced.clear()

    def settle(self) -> None:
        """Serve the node until it wants nothing more."""
        while self.node.has_ready:
            self.take()
            self.sync()

    def lead(self) -> None:
        """Win an election and apply its no-op."""
        self.node.campaign()
        self.settle()

    def propose(self, *data: object) -> None:
        """Propose one-byte entries."""
        for item in data:
            self.node.propose(item, 1)

    def restart(self, **config: int) -> Lone:
        """The same disk after a crash."""
        return Lone(self.storage, **{**self.config, **config})

    @property
    def data(self) -> list[object]:
        """The data of every NORMAL entry applied in this life."""
        return [entry.data for entry in self.applied if entry.kind.name == "NORMAL"]
