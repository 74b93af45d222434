"""Which log a group lies in, for ever, and which shard serves that log now."""

from __future__ import annotations

from dataclasses import dataclass

from weir.model.ids import REGISTRY_GROUP, Address, partition_of, topic_of


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbered logs of a node, fixed when it is founded, dealt to its shards in turn.

    How many shards there are may change with every start: no group ever moves to another log.
    """

    logs: int = 1
    shards: int = 1

    def log_of(self, group: int) -> int:
        """Return the log of a group: neighbours of a topic, and topics, begin one further."""
        return (topic_of(group) + partition_of(group)) % self.logs

    def shard_of(self, group: int) -> int:
        """Return the shard that serves a group."""
        return self.log_of(group) % self.shards

    def place(self, group: int) -> Address:
        """Return where a group is served."""
        log = self.log_of(group)
        return Address(log % self.shards, log, group)

    def logs_of(self, shard: int) -> list[int]:
        """Return the numbers of a shard's logs."""
        return [*range(shard, self.logs, self.shards)]

    @property
    def registry_shard(self) -> int:
        """The shard that leads the registry."""
        return self.shard_of(REGISTRY_GROUP)
