"""Where the devices of a partition stand, as an operator sees it, and forgets it."""

from __future__ import annotations

from weir.broker.consumers.commands import Commands
from weir.broker.records.control import HubForgotten
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.state import PartitionState
from weir.protocol.client import admin as a

#: So many devices at least are told together, if there are so many.
_TOGETHER = 2_000


class Standings:
    """Lists and forgets the hubs of one partition while this node leads it."""

    __slots__ = ("_outbox", "_state", "commands")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._outbox = outbox
        self.commands = Commands(group, outbox)

    def list(self, caller: Caller, request: a.ListHubs) -> None:
        """Say where the devices of a hub stand, or some of all."""
        origins = self._state.origins
        if request.hub is not None:
            self._outbox.reply(caller, a.HubList(origins.of_hub(request.hub)))
        else:
            self._outbox.reply(caller, a.HubList(*origins.part(request.part, _TOGETHER)))

    def forget(self, caller: Caller, request: a.ForgetHub) -> None:
        """Propose to forget a hub; that is confirmed once it is committed.

        Raises `Unavailable` once the node stops, and what a proposal does.
        """
        self.commands.check_open()
        self.commands.propose(HubForgotten(request.hub), caller)

    def forgotten(self, index: int, devices: int) -> None:
        """A hub is forgotten: answer."""
        caller = self.commands.applied(index)
        if caller is not None:
            self._outbox.reply(caller, a.HubForgotten(devices))
