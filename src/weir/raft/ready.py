"""What the library asks of its host, and in what order.

A host's whole duty is this loop, in which writing may lag behind by any number of Readies:

    while node.has_ready:
        ready = node.ready()
        write ready.hard_state, then ready.entries; later sync, then node.persisted(ready.number)
        apply ready.committed; then node.applied(its last index)

Nothing may be told to a client because it was proposed or written: only because it came out in
`committed`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.raft.storage import Entry, HardState


@dataclass(frozen=True, slots=True)
class Leadership:
    """An election won in `term`, with the highest `fence` that any of its votes carried."""

    term: int
    fence: int


@dataclass(frozen=True, slots=True)
class Ready:
    """One step's work for the host. The comment on each field is the ordering contract."""

    #: Readies count from 1, one by one. Those with `must_persist` are acknowledged through
    #: Node.persisted in this order; for the others the acknowledgement may be left out.
    number: int
    #: Write before the entries of this and of every later Ready; durable before this Ready is
    #: acknowledged. It replaces the one before it and is never behind it. None: unchanged.
    hard_state: HardState | None
    #: Append in this order, behind the entries of all earlier Readies; durable, hard state
    #: included, before this Ready is acknowledged. One sync may cover many Readies.
    entries: tuple[Entry, ...]
    #: Apply in this order, each once, before those of any later Ready; then call Node.applied.
    #: They are durable on a majority already and need not wait for this Ready's own writes.
    #: A committed entry comes in a later Ready than the one that asked to append it.
    committed: tuple[Entry, ...]
    #: This node leads from here on. Take note before writing `entries`, whose first is the new
    #: leader's NOOP: whatever the host stamps on entries must be above the fence from now on.
    became_leader: Leadership | None

    @property
    def must_persist(self) -> bool:
        """Whether something must become durable, so that Node.persisted must be called."""
        return self.hard_state is not None or bool(self.entries)
