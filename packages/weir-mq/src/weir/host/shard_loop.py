"""The only loop: a shard takes its events, and what comes of them is done, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, Protocol

from weir.broker.api import events as ev
from weir.broker.api.effects import Effect
from weir.broker.shard import Shard
from weir.host.connections import Connections
from weir.host.event_queue import EventQueue

#: Calls what it is given behind this turn of the host.
Soon = Callable[[Callable[[], None]], object]


class Host(Protocol):
    """Whose shard it is."""

    def serve(self) -> None:
        """The shard can serve: clients are let in."""

    def broke(self, where: str, error: Exception) -> None:
        """The shard broke: nothing that it says is to be believed any more. May raise `error`."""


class ShardLoop:
    """Lets a shard take what is in its queue, and does what it asks for, until that is empty."""

    __slots__ = (
        "_actions",
        "_connections",
        "_host",
        "_linked",
        "_queue",
        "_serves_backlog",
        "_shard",
        "_soon",
        "_started",
        "serves",
    )  # fmt: skip

    def __init__(
        self,
        shard: Shard,
        queue: EventQueue,
        connections: Connections[Any],
        linked: Sized,
        actions: Mapping[type, Callable[[Any], None]],
        host: Host,
        soon: Soon,
    ) -> None:
        """`actions` do what each effect asks for. `linked` are the nodes that this shard links to:
        with any of them clients are let in though `shard` leads nothing, for who leads comes out
        between them.
        """
        self._shard = shard
        self._queue = queue
        self._connections = connections
        self._linked = linked
        self._actions = actions
        self._host = host
        self._soon = soon
        self._serves_backlog = self._started = False
        #: Whether clients are let in: once they are, that goes on, whoever leads.
        self.serves = False

    def start(self) -> None:
        """Bring the shard up; clients wait to be let in until it can serve."""
        self._connections.hold_clients()
        self.do(self._shard.start())
        self._started = True

    def handle(self, event: ev.Event, /) -> None:
        """Feed one event and do what comes of it, unless events are gathered."""
        queue = self._queue
        queue.put(event)
        if not queue.waits:
            self.run()

    def run(self) -> None:
        """Let the shard take what is in its queue, and do what comes of it, until that is empty."""
        queue, connections = self._queue, self._connections
        unserved = connections.unserved
        try:
            while not queue.waits:
                if not queue.events:
                    if not unserved:
                        break
                    connections.serve_next()
                    continue
                if effects := queue.take():
                    self.do(effects)
                behind = queue.follow()
                if behind:
                    self.do(behind)
                elif behind is None:
                    self._soon(self._run_deferred)
            if not self.serves:
                self._look()
            if connections.backlog and not self._serves_backlog:
                self._serves_backlog = True
                self._soon(self._serve_backlog)
        except Exception as error:
            self._broke(error)

    def do(self, effects: list[Effect]) -> None:
        """Do what effects ask for, in order."""
        actions = self._actions
        for effect in effects:
            actions[type(effect)](effect)

    def _serve_backlog(self) -> None:
        self._serves_backlog = False
        self._connections.serve_backlog()
        self.run()

    def _run_deferred(self) -> None:
        try:
            self.do(self._queue.run_deferred())
            if not self.serves:
                self._look()
        except Exception as error:
            self._broke(error)

    def _look(self) -> None:
        """Serve as soon as the shard can."""
        if self._started and (self._shard.ready or self._linked):
            self.serves = True
            self._connections.admit_clients()
            self._host.serve()

    def _broke(self, error: Exception) -> None:
        taken = self._queue.taken
        self._queue.close()
        self._host.broke(type(taken[0]).__name__ if taken else "settling", error)
