"""Which configuration was in force from which index on."""

from __future__ import annotations

from weir_raft.config import Config
from weir_raft.errors import StorageError
from weir_raft.membership import Configuration
from weir_raft.storage import Storage


class History:
    """The configurations in a node's log, oldest first; the newest counts. (§4.1)"""

    __slots__ = ("_known", "newest")

    def __init__(self, config: Config, storage: Storage) -> None:
        snapshot = storage.snapshot()
        first = storage.configuration() or Configuration(config.voters, (), config.learners)
        self._known = [(snapshot.index if snapshot else 0, first)]
        for index, data in storage.configurations():
            if index <= self._known[-1][0]:
                raise StorageError(f"configuration {index} is not above {self._known[-1][0]}")
            self._known.append((index, Configuration.unpack(data)))
        self.newest = self._known[-1][1]

    @property
    def index(self) -> int:
        """The index of the newest configuration's entry."""
        return self._known[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration as of entry `index`, which must not be forgotten."""
        found = self._known[0][1]
        for since, configuration in self._known:
            if since <= index:
                found = configuration
        return found

    def append(self, index: int, configuration: Configuration) -> None:
        """The log's entry `index` puts `configuration` in force."""
        self._known.append((index, configuration))
        self.newest = configuration

    def supersede(self, index: int) -> None:
        """The log's entries from `index` on are gone."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()
        self.newest = self._known[-1][1]

    def restart(self, index: int, configuration: Configuration) -> None:
        """A snapshot as of `index` replaces all that was known."""
        self._known = [(index, configuration)]
        self.newest = configuration

    def forget(self, index: int) -> None:
        """Nobody asks for what was in force below `index` any more."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]
