"""Nodes, Readies and messages as one line of text each, for transcripts and traces."""

from __future__ import annotations

from collections.abc import Sequence

from weir_raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)
from weir_raft.node import Node
from weir_raft.ready import Ready
from weir_raft.storage import Entry


def describe_entry(entry: Entry) -> str:
    """An entry as `index@term kind`, and its bytes when it has any."""
    text = f"{entry.index}@{entry.term} {entry.kind.name.lower()}"
    return f"{text} {entry.size}B" if entry.size else text


def describe_ready(ready: Ready) -> str:
    """A Ready in the order in which the host must act on it."""
    parts = []
    if ready.lost_leadership:
        parts.append("lose the majority" if ready.lost_quorum else "lead no more")
    if ready.became_leader:
        parts.append(f"lead term={ready.became_leader.term} fence={ready.became_leader.fence}")
    if ready.hard_state:
        parts.append(f"persist term={ready.hard_state.term} vote={ready.hard_state.vote}")
    if ready.snapshot:
        parts.append(f"install {ready.snapshot.index}@{ready.snapshot.term}")
    if ready.entries:
        parts.append(f"append {_list(ready.entries)}")
    if ready.committed:
        parts.append(f"apply {_list(ready.committed)}")
    parts += [f"serve read {read.context} at {read.index}" for read in ready.reads]
    parts += [f"load {load.lo} to {load.hi - 1}" for load in ready.loads]
    parts += [f"offer {member} a snapshot" for member in ready.wants_snapshot]
    parts += [f"send {describe_message(message)}" for message in ready.messages]
    return f"ready {ready.number}: {'; '.join(parts)}"


def describe_message(message: Message) -> str:
    """A message as `sender->to term what`."""
    return f"{message.sender}->{message.to} term={message.term} {_content(message)}"


def _content(message: Message) -> str:
    match message:
        case VoteRequest():
            kind = "would vote?" if message.pre else "vote?"
            return f"{kind} end={message.last_index}@{message.last_term}"
        case VoteReply():
            kind = "would vote" if message.pre else "vote"
            return f"{kind} {'granted' if message.granted else 'refused'} fence={message.fence}"
        case Append():
            entries = _list(message.entries) or "nothing"
            before = f"{message.prev_index}@{message.prev_term}"
            return f"append {entries} after {before} commit={message.commit}"
        case AppendReply() if message.rejected:
            hint = f"{message.hint_index}@{message.hint_term}"
            return f"lacks {message.index}, try {hint}"
        case AppendReply():
            return f"has {message.index} commit={message.commit}"
        case Heartbeat() | HeartbeatReply():
            return f"{'lead' if isinstance(message, Heartbeat) else 'follow'} round={message.round}"
        case InstallSnapshot():
            last = message.position + len(message.data)
            whole = f"{message.snapshot.index}@{message.snapshot.term} of {message.snapshot.size}B"
            return f"snapshot {whole} bytes {message.position} to {last}"
        case SnapshotReply():
            return f"snapshot {'refused' if message.rejected else f'below {message.position}'}"
        case _:
            return "campaign now"


def describe_node(node: Node) -> str:
    """A node's role, term and positions."""
    return (
        f"{node.role.value} term={node.term} leader={node.leader} fence={node.fence} "
        f"first={node.log.first_index} last={node.log.last_index} "
        f"commit={node.log.committed} applied={node.log.applied}"
    )


def _list(entries: Sequence[Entry]) -> str:
    return ", ".join(map(describe_entry, entries))
