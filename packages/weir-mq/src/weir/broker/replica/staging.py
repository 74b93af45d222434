"""What a Ready asks to make durable, as records of the log."""

from __future__ import annotations

import msgspec

import weir_raft as raft
from weir.broker.records.entries import Payload, stored_in
from weir.broker.replica.raft_storage import pack_installed
from weir.storage.format.frame import Kind
from weir.storage.format.record import HardState, Record
from weir.storage.log import Log


class Token(msgspec.Struct, frozen=True):
    """Which Ready a flush has made durable, and of which node: its group may be gone by then, and
    another node in its place.
    """

    group: int
    node: raft.Node
    ready: int


def stage(log: Log, group: int, node: raft.Node, ready: raft.Ready) -> None:
    """Stage a Ready's hard state, snapshot and entries, in this order; the flush that makes all of
    it durable carries its `Token`.
    """
    token = Token(group, node, ready.number)
    if ready.hard_state is None and ready.snapshot is None:
        *most, last = ready.entries
        for entry in most:
            log.append(_record(group, entry))
        log.append(_record(group, last), token)
        return
    records = [] if ready.hard_state is None else [_voted(group, ready.hard_state, node.fence)]
    if (snapshot := ready.snapshot) is not None:
        for record in records:
            log.append(record)
        at, base = (snapshot.index, snapshot.term), (snapshot.base_index, snapshot.base_term)
        data = pack_installed(snapshot)
        log.install(group, *at, *base, data, None if ready.entries else token)
        records = []
    records += [_record(group, entry) for entry in ready.entries]
    for record in records[:-1]:
        log.append(record)
    if records:
        log.append(records[-1], token)


def _voted(group: int, state: raft.HardState, fence: int) -> Record:
    data = HardState(state.term, state.vote, fence).pack()
    return Record(group, state.term, 0, Kind.HARD_STATE, (data,), len(data))


def _record(group: int, entry: raft.Entry) -> Record:
    data = entry.data
    payload = data if isinstance(data, Payload) else stored_in(entry)
    batches = payload.batches
    return Record(
        group,
        entry.term,
        entry.index,
        payload.kind,
        payload.buffers,
        payload.size,
        batches[0].offset if batches else -1,
        batches[-1].next_offset if batches else -1,
        batches[-1].stamp if batches else -1,
    )
