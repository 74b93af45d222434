"""The folder of a relay node: whose copy it holds, which topics, and its log.

relay.json   system, BrokerSet and node ids; written once, when the core answers for the first time
topics.json  the topics as the core described them last, so that they are served while it is away
log/         the log
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from weir.errors import WeirError
from weir.protocol.client.admin import TopicInfo
from weir.storage.disk import Disk

#: The file without which a folder is not that of a relay.
FOUNDED = "relay.json"
_TOPICS = "topics.json"


class BadRelayFolder(WeirError):
    """A folder that is not the one of this relay."""


class Founded(msgspec.Struct, frozen=True):
    """The identity of a relay: the set and the node that it tells the core. It is `private` once it
    has pulled as a user: what is here is for users from then on.
    """

    system: int
    brokerset: int
    node: int
    private: bool = False


class RelayFolder:
    """A folder that one relay node at a time has open."""

    def __init__(self, path: Path, files: Disk, log: Callable[[], Disk]) -> None:
        """Be a folder with these files; `log` opens that of the log."""
        self.path = path
        self._files = files
        #: Opens the folder of the log.
        self.disk = log

    def founded(self) -> Founded | None:
        """Return who the relay is; None in a new folder. Raises `BadRelayFolder`."""
        data = self._read(FOUNDED)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Founded)
        except msgspec.DecodeError as error:
            raise BadRelayFolder(
                f"{self.path / FOUNDED} cannot be read ({error}): remove the folder, and the "
                "relay pulls everything again"
            ) from None

    def found(self, founded: Founded) -> None:
        """Write down who the relay is."""
        self._files.replace(FOUNDED, msgspec.json.encode(founded))

    def topics(self) -> list[TopicInfo]:
        """Return the topics as they were last described; none where that cannot be read."""
        data = self._read(_TOPICS)
        try:
            return msgspec.json.decode(data, type=list[TopicInfo]) if data else []
        except msgspec.DecodeError:
            return []  # the core tells them again

    def keep_topics(self, topics: list[TopicInfo]) -> None:
        """Write down the topics."""
        self._files.replace(_TOPICS, msgspec.json.encode(topics))

    def close(self) -> None:
        """Give up the folder."""
        self._files.close()

    def _read(self, name: str) -> bytes | None:
        if name not in self._files.names():
            return None
        return self._files.read(name, 0, self._files.size(name))
