"""Nodes and Readies as one line of text each, for transcripts and traces."""

from __future__ import annotations

from collections.abc import Sequence

from weir.raft.node import Node
from weir.raft.ready import Ready
from weir.raft.storage import Entry


def describe_entry(entry: Entry) -> str:
    """An entry as `index@term kind`, and its bytes when it has any."""
    text = f"{entry.index}@{entry.term} {entry.kind.name.lower()}"
    return f"{text} {entry.size}B" if entry.size else text


def describe_ready(ready: Ready) -> str:
    """A Ready in the order in which the host must act on it."""
    parts = []
    if ready.became_leader:
        parts.append(f"lead term={ready.became_leader.term} fence={ready.became_leader.fence}")
    if ready.hard_state:
        parts.append(f"persist term={ready.hard_state.term} vote={ready.hard_state.vote}")
    if ready.entries:
        parts.append(f"append {_list(ready.entries)}")
    if ready.committed:
        parts.append(f"apply {_list(ready.committed)}")
    return f"ready {ready.number}: {'; '.join(parts)}"


def describe_node(node: Node) -> str:
    """A node's role, term and positions."""
    return (
        f"{node.role.value} term={node.term} leader={node.leader} fence={node.fence} "
        f"first={node.first_index} last={node.last_index} "
        f"commit={node.commit_index} applied={node.applied_index}"
    )


def _list(entries: Sequence[Entry]) -> str:
    return ", ".join(map(describe_entry, entries))
