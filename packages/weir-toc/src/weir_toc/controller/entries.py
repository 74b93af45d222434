"""What the controller is told, and what it commands; both are data.

Entries are applied one by one, in one order, so that replicas of the controller agree. Commands may
be repeated: whom they reach obeys once.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir_toc.topology import Routes


@dataclass(frozen=True, slots=True)
class ProcessJoined:
    """The switch of a rack counts a process as an input."""

    process: int


@dataclass(frozen=True, slots=True)
class LinkJoined:
    """A switch hears of another one again, in a later epoch.

    While the link `is_behind`, the switch has promised more than came by it, and nothing is covered
    by that promise that comes by this link alone. It reports again at the end of that.
    """

    switch: int
    neighbour: int
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class InputSilent:
    """A switch has fenced an input. Its commit register is frozen at `commit`."""

    switch: int
    neighbour: int
    epoch: int
    commit: int


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """A process or a switch did not answer a command in time."""

    node: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Enough time has passed since the first report: decide on what is reported by now."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A process has recalled all that it had under way to the processes of a failure."""

    failure: int
    process: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """A process recalls what it sent, and cannot tell a receiver, which has failed.

    The receiver may have acknowledged it, and may come back: it must not deliver these stamps.
    """

    source: int
    receiver: int
    #: First and last stamps, in rising order.
    ranges: tuple[tuple[int, int], ...]


Entry = ProcessJoined | LinkJoined | InputSilent | NodeSilent | Decide | Completed | Recalled


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a process that was excluded must know of what it holds, to deliver what others do."""

    #: Failed senders of it, this process among them, and their failure stamps.
    failed: tuple[tuple[int, int], ...]
    #: Of each sender the first and last stamps of what it has recalled.
    recalled: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Freeze:
    """To a switch: fence an input, whether it is silent or not, and report its register."""

    switch: int
    neighbour: int


@dataclass(frozen=True, slots=True)
class Fail:
    """To a process: these have failed, each with the stamp above which nothing of it counts."""

    to: int
    failure: int
    processes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """To a switch: take a frozen register out of the minimum; all is settled.

    If it `holds` the input, that does not come back until this is commanded again without it.
    """

    switch: int
    neighbour: int
    epoch: int
    holds: bool = False


@dataclass(frozen=True, slots=True)
class SetRoutes:
    """To a switch: to which racks its neighbours lead from now on."""

    switch: int
    routes: Routes


Command = Freeze | Fail | Remove | SetRoutes
