"""What readers get of a relay's partition: what a fetch brings, and why it is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.codec import Buffer
from weir.errors import BadRequest, Damaged, DamagedRange, OffsetOutOfRange, Unavailable, ValueLost
from weir.model.batch import Batch, stored_header
from weir.model.ids import LIMIT_MAX, partition_of
from weir.model.limits import FETCH_BYTES_MAX
from weir.model.topic import Presence
from weir.protocol.client import messages as m
from weir.relay.entries import ChunkStored, Relayed, decode_entry
from weir.relay.messages import Mark
from weir.relay.portion import Plan, Portion, portion_of
from weir.relay.rows import HOLDS_BATCH, RowKind, StoredBatches, Tags, covers, within
from weir.relay.state import RelayState

BATCHES = StoredBatches()
_MORE, _SKIPPED, _VOID = int(RowKind.BATCH_MORE), int(RowKind.SKIPPED), int(RowKind.VOID)


class EntriesRead:
    """The entries that were read for an answer, by index."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[int, Buffer]) -> None:
        """Give these."""
        self._found = found

    def entry(self, index: int) -> Buffer:
        """Return the bytes of an entry. Raises `Damaged` for one that was not read."""
        if index not in self._found:
            raise Damaged(f"entry {index} was not read")
        return self._found[index]


def wanted_by(fetch: m.Fetch) -> Tags:
    """Return the tags that a fetch asks for; None: all messages."""
    return frozenset(fetch.tags) if fetch.tags else None


def check_fetch(
    state: RelayState, fetch: m.Fetch, topic: str, core: str, log_start: int
) -> None:  # fmt: skip
    """Raise why a fetch is refused: `Unavailable` while the log has not begun, `OffsetOutOfRange`
    below its start, or where the lineage in which the client has read ended before the offset,
    `DamagedRange` for what was lost on the way, and `BadRequest` for messages that are not kept
    here. What lies behind its end may come.

    The log of the core starts at `log_start`: what is lost below is past retention. It is -1 where
    nobody has said so yet: `Unavailable`.
    """
    offset = fetch.offset
    now = state.filter_at(max(offset, state.start))
    if not state.begun or now is None:
        raise Unavailable(f"this relay has received nothing of {topic} yet: try again shortly")
    if fetch.lineage > state.lineage:
        raise Unavailable(
            f"this relay has not heard of lineage {fetch.lineage} of {topic} yet: try again shortly"
        )
    if fetch.lineage >= 0 and 0 <= state.fork_of(fetch.lineage) < offset:
        raise fetch.beyond(state.start, state.end, state.forks)
    if offset < state.start:
        raise OffsetOutOfRange(
            f"offset {offset} is not here: this relay holds {state.start} to {state.end}",
            state.start,
        )
    for first, behind in state.gaps:
        if not first <= offset < behind:
            continue
        if log_start < 0:
            raise Unavailable(
                f"offsets {first} to {behind - 1} of {topic} are not here, and the core has not "
                "said yet whether they are past retention: try again shortly"
            )
        if offset < log_start:
            nearest = min(log_start, behind)
            raise OffsetOutOfRange(
                f"offset {offset} is past retention: read on at {nearest}", nearest
            )
        raise DamagedRange(
            f"offsets {first} to {behind - 1} of {topic} are lost: they were damaged in the core "
            f"before they came here; read on at {behind}",
            first,
        )
    wanted = wanted_by(fetch)
    here = offset < state.end
    is_kept = state.reach(offset, wanted) > offset if here else covers(now.tags, wanted)
    if not is_kept:
        kept = "all" if now.tags is None else ", ".join(repr(tag) for tag in sorted(now.tags))
        raise BadRequest(
            f"this relay does not keep all that is asked of {topic}: of offset {offset} it keeps "
            f"the tags {kept}. Read with tags= among these, or from {core}"
        )


def plan_of(state: RelayState, fetch: m.Fetch) -> Plan | None:
    """Return what is to be read for a fetch; None if there is nothing yet."""
    wanted, credit = wanted_by(fetch), min(max(fetch.max_bytes, 1), FETCH_BYTES_MAX // 2)
    until = state.reach(fetch.offset, wanted) if fetch.offset < state.end else fetch.offset
    if until <= fetch.offset:
        return None
    indexes = state.entries_from(fetch.offset, until, credit)
    # No chunk is told with messages: readers ask for those by their index.
    return Plan(fetch.address.group, fetch.offset, until, wanted, credit, LIMIT_MAX - 1, indexes)


def fetched_of(
    fetch: m.Fetch, portion: Portion, committed: int, mark: Mark | None, partitions: int,
    lineage: int,
) -> m.Fetched:  # fmt: skip
    """Return the answer to a fetch, as the core would give it. `committed` is the core's end as far
    as it is known here; so many `partitions` belong to the order as of what is stored here. The
    portion is what the relay had of a `lineage`.
    """
    rows: list[Buffer] = []
    voids: list[tuple[int, int]] = []
    skipped: list[tuple[int, int]] = []
    at, data, is_cut, stamp = portion.first, iter(portion.data), False, 0
    for row in portion.rows:
        behind = at + row.count
        if row.kind in HOLDS_BATCH:
            batch = next(data)
            header = stored_header(batch)
            if at > portion.first and header.first_offset < at:
                break  # a batch that begins before what it covers is the first of an answer
            rows.append(batch)
            is_cut, stamp = row.kind == _MORE, row.stamp
            at = behind
            if header.next_offset > behind:
                break
            continue
        if row.kind == _VOID:
            voids.append((at, behind))
        else:
            skipped.append((at, behind))
            is_cut = is_cut and row.stamp < stamp
        at = behind
    committed = max(committed, at)
    order = order_of(fetch, mark, committed, partitions)
    return m.Fetched(
        fetch.address, fetch.offset, at, committed, tuple(rows), *order,
        tuple(voids), is_cut, bool(fetch.tags), tuple(skipped), lineage,
    )  # fmt: skip


def nothing_for(
    fetch: m.Fetch, committed: int, mark: Mark | None, partitions: int, lineage: int
) -> m.Fetched:  # fmt: skip
    """Return the answer that nothing has come in time."""
    return m.Fetched(
        fetch.address, fetch.offset, fetch.offset, committed, (),
        *order_of(fetch, mark, committed, partitions),
        is_filtered=bool(fetch.tags),
        lineage=lineage,
    )  # fmt: skip


def order_of(
    fetch: m.Fetch, mark: Mark | None, committed: int, partitions: int
) -> tuple[int, int]:  # fmt: skip
    """Return barrier and partitions of an answer, of which `committed` is told: all messages up to
    the barrier lie below that. How many partitions there are is told also where the barrier is not:
    a message of partition 0 may lie above the stamp from which on another one counts.
    """
    told = 0 if partition_of(fetch.address.group) else partitions
    if mark is None or mark.through > committed:
        return 0, told
    return mark.stamp, told


def read_portion(plan: Plan, found: Mapping[int, Buffer], state: RelayState) -> Portion | None:
    """Return what a plan names of the entries that were `found`; None if that is nothing."""
    indexes: list[int] = []
    for index in plan.indexes:
        if index not in found:
            break
        indexes.append(index)
    if not indexes:
        return None
    plan = plan._replace(indexes=tuple(indexes))
    portion = portion_of(plan, EntriesRead(found), state.chunks, BATCHES)
    return portion if portion.next > portion.first else None


def check_chunk(state: RelayState, index: int, is_behind: bool) -> None:
    """Raise why a chunk is not served: `Unavailable` for one above all that came, while the relay
    `is_behind` the core; else `ValueLost` for one that is not here.
    """
    if state.chunks.find(index):
        return
    newest = state.chunks.core[-1] if len(state.chunks) else 0
    if is_behind and index > newest:
        raise Unavailable(f"this relay has not received chunk {index} yet: ask again shortly")
    raise ValueLost(f"no chunk {index} is here: it is past retention")


def chunk_indexes(state: RelayState, index: int, count: int) -> list[int]:
    """Return the own indexes of chunks from the core's `index` on, as many as follow it here."""
    found = []
    for at in range(index, index + count):
        own = state.chunks.find(at)
        if not own:
            break
        found.append(own)
    return found


def presence_in(state: RelayState, offset: int, log_start: int) -> Presence:
    """Return whether a message is here, as far as no entry has to be read: STORED may be SKIPPED or
    ABORTED.

    The log of the core starts at `log_start`: what did not come and lies below is past retention.
    Raises `Unavailable` for what did not come while that is -1, which nobody has said yet.
    """
    if not state.begun or offset >= state.end:
        return Presence.AWAITED
    if offset < state.start:
        return Presence.DELETED
    if any(first <= offset < behind for first, behind in state.gaps):
        if log_start < 0:
            raise Unavailable(
                f"offset {offset} is not here, and the core has not said yet whether it is past "
                "retention: try again shortly"
            )
        return Presence.DELETED if offset < log_start else Presence.LOST
    return Presence.STORED


def found_in(entry: Buffer, offset: int) -> tuple[Presence, int, int]:
    """Return whether an entry that covers an offset holds its message, the stamp of what holds it
    there, and when it was received, in ms since 1970. Raises `Damaged`.
    """
    record, data = decode_entry(entry)
    if not isinstance(record, Relayed):
        raise Damaged(f"the entry that covers offset {offset} holds no messages")
    rows = within(record.first, record.rows, data, offset, offset + 1)
    for _, row, batch in rows:
        if row.kind == _VOID:
            return Presence.ABORTED, 0, record.received_ms
        if batch is None or offset not in Batch(batch).offsets:
            return Presence.SKIPPED, 0, record.received_ms
        return Presence.STORED, row.stamp or stored_header(batch).stamp, record.received_ms
    raise Damaged(f"the entry that covers offset {offset} has no row of it")


def chunks_in(indexes: Sequence[int], found: Mapping[int, Buffer]) -> list[Buffer]:
    """Return the chunks in entries that were read, up to the first that is missing."""
    chunks: list[Buffer] = []
    for index in indexes:
        if index not in found:
            break
        record, data = decode_entry(found[index])
        if not isinstance(record, ChunkStored):
            raise Damaged(f"entry {index} holds no chunk")
        chunks.append(data)
    return chunks
