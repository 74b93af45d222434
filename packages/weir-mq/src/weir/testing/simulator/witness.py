"""What no client can see: who led which term, and whether the replicas of a group agree.

The checkers of promises judge by what clients were told. A broken election or two logs that differ
may take long until a client is harmed; here they are seen at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import weir_raft as raft
from weir.broker.records.snapshots import pack
from weir.broker.replica.group import Group
from weir.testing.simulator.running import RunningProcess

AGREED = "Agreed"
_LEADER = raft.Role.LEADER
_COMPLAINTS_MAX = 20


class Witness:
    """Looks on while a run goes on, and compares replicas in the end."""

    def __init__(self) -> None:
        """Have seen nothing."""
        #: By group and term, the node that leads.
        self._leaders: dict[tuple[int, int], int] = {}
        #: By group, index and lineage, the term of what was applied there first.
        self._applied: dict[tuple[int, int, int], int] = {}
        #: By process and group, its term, what it had applied, and whether it led at the last look.
        self._seen: dict[tuple[int, int], tuple[int, int, bool]] = {}
        #: By process and group, through which index that was looked at.
        self._looked: dict[tuple[int, int], int] = {}
        self.complaints: list[tuple[str, str]] = []

    def look(self, process: RunningProcess) -> None:
        """Note the groups that a process leads, and what it applied since the last time.

        A group has one leader a term, and in a lineage one entry at each committed index.
        """
        seen, run = self._seen, process.run
        for group in groups_of(process):
            node, place = group.node, (run, group.id)
            now = node.term, node.log.applied, node.role is _LEADER
            if seen.get(place) == now:
                continue
            seen[place] = now
            leads = now[2]
            if leads:
                led = self._leaders.setdefault((group.id, node.term), process.node)
                if led != process.node:
                    text = f"nodes {led} and {process.node} lead in term {node.term}"
                    self._complain(f"group {group.id}: {text}")
            if group.has_others and group.damage is None:
                self._follow(group, process)

    def _follow(self, group: Group, process: RunningProcess) -> None:
        node, place = group.node, (process.run, group.id)
        first = max(self._looked.get(place, 0) + 1, node.log.first_index)
        through = min(node.log.applied, node.log.last_index)
        number, applied = group.id, self._applied
        for index in range(first, through + 1):
            try:
                term = node.log.term(index)
            except raft.Compacted:
                continue
            if not term:  # its entry rotted, and nobody needs it
                continue
            known = applied.setdefault((number, index, raft.lineage_of(term)), term)
            if known != term:
                text = f"applied an entry of term {term} at {index}, where {known} was"
                self._complain(f"group {group.id}: node {process.node} {text}")
        self._looked[place] = max(through, first - 1)

    def compare(self, processes: Iterable[RunningProcess]) -> None:
        """Compare the states of all replicas that have applied as much as another."""
        states: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        for process in processes:
            for group in groups_of(process):
                if group.damage is not None:
                    continue
                state = pack(group.machine.encode())
                at = group.id, group.node.log.applied, group.node.lineages.begun
                node, other = states.setdefault(at, (process.node, state))
                if other != state:
                    text = f"nodes {node} and {process.node} applied through {at[1]}, and differ"
                    self._complain(f"group {at[0]}: {text}")

    def _complain(self, text: str) -> None:
        if len(self.complaints) < _COMPLAINTS_MAX:
            self.complaints.append((AGREED, text))


def led_by(process: RunningProcess) -> list[int]:
    """Return the groups that a process leads, or believes to lead."""
    return [group.id for group in groups_of(process) if group.node.role is _LEADER]


def groups_of(process: RunningProcess) -> list[Group]:
    """Return the groups of a process; none if it has ended."""
    shard = process.shard
    if shard is None:
        return []
    return [group for writer in shard.writers for group in writer.groups.values()]
