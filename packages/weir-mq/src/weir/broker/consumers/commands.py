"""Commands of clients: each is an entry, and whoever sent it is answered once that is applied."""

from __future__ import annotations

from weir.broker.records.control import ControlRecord
from weir.broker.records.entries import Payload, of_control
from weir.broker.replica.group import Group
from weir.broker.replica.proposals import Proposals
from weir.broker.runtime.outbox import Caller, Outbox
from weir.errors import Refused, Unavailable


class Commands:
    """Commands of one kind to one partition, while this node leads it."""

    __slots__ = ("_draining", "_outbox", "_proposals")

    def __init__(self, group: Group, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._proposals: Proposals[Payload, Caller] = Proposals(group.propose)
        self._outbox = outbox
        self._draining = False

    def check_open(self) -> None:
        """Raise `Unavailable` once the node stops."""
        if self._draining:
            raise Unavailable("this node is stopping: ask another, or again shortly")

    def propose(self, record: ControlRecord, caller: Caller) -> None:
        """Propose what a client asked for. Raises `NotLeader`, `Unavailable` or `Overloaded`."""
        self._proposals.propose(of_control(record), caller)

    def applied(self, index: int) -> Caller | None:
        """Return who is to be answered now that the entry at `index` is applied, if anybody is."""
        return self._proposals.applied(index)

    def drain(self) -> None:
        """Take no more: the node stops."""
        self._draining = True

    def lose(self, error: Refused) -> None:
        """This node leads no more: another will know whether these were committed."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)
