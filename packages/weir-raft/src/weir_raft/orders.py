"""What a host asks of its node, most of it of a leader, and why it is refused."""

from __future__ import annotations

from weir_raft.core import Core
from weir_raft.errors import ChangePending, InvalidChange, NotLeader, NotReady, OutOfOrder
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.membership import Change
from weir_raft.storage import EntryKind, Snapshot

_NORMAL = EntryKind.NORMAL


def propose(core: Core, data: object, size: int) -> int:
    """Append `data` to the leader's log and return its index; refusals as in Node.propose."""
    state = _accepting(core)
    if size < 0:
        raise ValueError(f"the size of an entry is its bytes, not {size}")
    core.log.admit(size)
    return state.append(_NORMAL, data, size)


def change(core: Core, change: Change) -> int:
    """Append the configuration that `change` leads to and return its index."""
    state, node_state = _accepting(core), core.node_state
    if node_state.configuration.joint or node_state.history.index > core.log.committed:
        raise ChangePending("a change of the configuration is under way: wait until it is done")
    return core.configure(state, node_state.configuration.changed(change))


def read(core: Core, context: int) -> None:
    """Ask for a ReadState; refusals as in Node.read_index."""
    state = _leading(core)
    if core.log.committed < state.first_index:
        raise NotReady(
            f"entry {state.first_index}, the first of term {core.node_state.term}, is not "
            "committed yet: ask again once it is"
        )
    state.read(context)


def transfer(core: Core, voter: int) -> None:
    """Hand the leadership over; refusals as in Node.transfer_leadership."""
    state = _leading(core)
    if voter == core.node_state.id:
        return
    if not core.node_state.configuration.counts(voter):
        raise InvalidChange(f"{voter} is no voter, so it cannot lead")
    state.transfer(voter)


def ask_again(core: Core) -> None:
    """Ask the leader how it is with this member."""
    if isinstance(core.state, Follower):
        core.state.ask_again()


def send_snapshot(core: Core, voter: int, snapshot: Snapshot) -> None:
    """Send what wants_snapshot asked for; OutOfOrder if it does not meet the log."""
    log = core.log
    if snapshot.base_index + 1 < log.first_index or snapshot.index > log.applied:
        raise OutOfOrder(
            f"a snapshot as of {snapshot.index} over {snapshot.base_index} does not meet a log "
            f"from {log.first_index} that is applied through {log.applied}"
        )
    if isinstance(core.state, Leader):
        core.state.send_snapshot(voter, snapshot)


def _leading(core: Core) -> Leader:
    state = core.state
    if not isinstance(state, Leader):
        raise NotLeader(state.leader)
    return state


def _accepting(core: Core) -> Leader:
    state = core.state
    if isinstance(state, Leader) and state.accepts:
        return state
    state = _leading(core)
    if state.transferee:
        raise NotReady(f"leadership is handed to {state.transferee}: propose there soon")
    raise NotReady(
        f"entry {state.first_index}, the first of term {core.node_state.term}, is not "
        "applied yet: propose again once it is"
    )
