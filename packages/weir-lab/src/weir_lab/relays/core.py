"""Partitions of the core as a model: what is in them, what is committed, and what never was.

Messages are few and small, so thousands of worlds are played in seconds. Relays get them through
the upper side that ships.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from weir.codec import Buffer
from weir.errors import BadBatch
from weir.relay.holds import HoldLimits
from weir.relay.messages import Chunk, Mark, Pull
from weir.relay.portion import Plan, Portion, missing_chunks
from weir.relay.rows import (
    Facts,
    RosterEntry,
    Row,
    RowKind,
    RowsBuilder,
    Tags,
    roster_entry,
    unpack_tags,
)
from weir.relay.upper import Upper


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A message at an offset: stamp, tag and value. A void offset has the tag "void"."""

    stamp: int
    tag: str
    value: int
    is_void: bool = False


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the model: where it begins, how many offsets it covers, its stamp, messages by
    row, and the chunks of the large value that it closes.
    """

    first: int
    count: int
    stamp: int
    rows: tuple[tuple[int, str, int], ...]
    chunks: tuple[tuple[int, int], ...] = ()


_decoder = msgspec.msgpack.Decoder(Packed)
_CRC_BYTES = 4


def sealed(data: bytes, group: int) -> bytes:
    """Return bytes with a checksum for a group behind them."""
    return data + zlib.crc32(data, group).to_bytes(_CRC_BYTES, "little")


def opened(data: Buffer, group: int) -> bytes:
    """Return bytes without their checksum. Raises `BadBatch` if it is another one."""
    held = bytes(data)
    body, crc = held[:-_CRC_BYTES], int.from_bytes(held[-_CRC_BYTES:], "little")
    if zlib.crc32(body, group) != crc:
        raise BadBatch("the bytes of the model fail their checksum")
    return body


def unpacked(data: Buffer) -> Packed:
    """Return a batch that was checked before."""
    return _decoder.decode(bytes(data)[:-_CRC_BYTES])


class ModelBatches:
    """Looks into batches of the model."""

    __slots__ = ()

    def check(self, data: Buffer, group: int) -> Facts:
        """Check a batch. Raises `BadBatch`."""
        batch = _decoder.decode(opened(data, group))
        return Facts(batch.first, batch.first + batch.count, batch.stamp, batch.chunks)

    def check_chunk(self, data: Buffer, group: int) -> None:
        """Check a chunk. Raises `BadBatch`."""
        opened(data, group)

    def chunks(self, data: Buffer) -> tuple[tuple[int, int], ...]:
        """Return the runs of chunks that a batch refers to."""
        return unpacked(data).chunks

    def select(self, data: Buffer, tags: frozenset[str], group: int) -> Buffer | None:
        """Return the batch whole if half of it matches, else the rows that do, else None."""
        batch = unpacked(data)
        kept = tuple(row for row in batch.rows if row[1] in tags)
        if not kept:
            return None
        if 2 * len(kept) >= len(batch.rows):
            return data
        part = msgspec.structs.replace(batch, rows=kept)
        return sealed(msgspec.msgpack.encode(part), group)


@dataclass(slots=True)
class Item:
    """What lies at offsets [first, next) of the core's log: a batch, or nothing for anybody."""

    first: int
    next: int
    stamp: int
    kind: RowKind
    data: bytes = b""


@dataclass(slots=True)
class Log:
    """What a lineage of a partition holds; items from `committed` on are not committed yet."""

    items: list[Item] = field(default_factory=list)
    roster: list[RosterEntry] = field(default_factory=list)
    chunks: dict[int, bytes] = field(default_factory=dict)
    truth: list[Told] = field(default_factory=list)
    committed: int = 0
    roster_committed: int = 0


class CorePartition:
    """A partition of the core, which serves relays through the upper side that ships."""

    def __init__(self, group: int, limits: HoldLimits) -> None:
        """Begin empty, in lineage 1."""
        self.group = group
        self.log = Log()
        self.lineage = 1
        self.forks: list[tuple[int, int]] = []
        self.start = 0
        self.mark: Mark | None = None
        self.stamp = 0
        self.next_index = 1
        #: Up to where data was let go that a child needed: more than may be kept.
        self.forced = 0
        #: What each lineage holds, or held up to its end.
        self.truths: dict[int, list[Told]] = {1: self.log.truth}
        self.batches = ModelBatches()
        self.upper = Upper(group, self, limits)

    # -- what relays are served from ---------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """A core's log has always begun."""
        return True

    @property
    def log_start(self) -> int:
        """What lies below is past retention."""
        return self.start

    @property
    def end(self) -> int:
        """The end of what is committed."""
        return len(self.log.truth)

    @property
    def roster(self) -> Sequence[RosterEntry]:
        """The committed entries about the roster."""
        return self.log.roster[: self.log.roster_committed]

    def age_ms(self, now_ms: int) -> int:
        """This is the core."""
        return 0

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages took; -1 if there is none."""
        return min((at for later, at in self.forks if later > lineage), default=-1)

    def next_kept(self, offset: int) -> int:
        """Nothing is missing amid a core's log."""
        return offset

    def reach(self, offset: int, tags: Tags) -> int:
        """All that is committed may be served."""
        return max(self.end, offset)

    def covered_from(self, tags: Tags) -> int:
        """A core has all that there is."""
        return 0

    def plan(self, pull: Pull, until: int) -> Plan:
        """Return what is to be read for a pull."""
        tags = unpack_tags(pull.tags)
        return Plan(self.group, pull.offset, until, tags, pull.credit, pull.last_chunk)

    def affordable(self, bytes_max: int) -> int:
        """Return the offset from which on no more than so many bytes are held."""
        held, found = 0, self.end
        for item in reversed(self.log.items):
            held += len(item.data)
            if held > bytes_max:
                return found
            found = min(found, item.first)
        return 0

    def read(self, plan: Plan, rows_max: int) -> Portion:
        """Read what a plan names; at most so many rows, so that answers have ends of all kinds."""
        built = RowsBuilder(plan.first)
        for item in self.log.items:
            if item.next <= plan.first or item.first >= plan.until:
                continue
            if len(built.rows) >= rows_max:
                break
            begin, end = max(item.first, plan.first), min(item.next, plan.until)
            kept: Buffer | None = None
            if item.kind != RowKind.VOID:
                tags = plan.tags
                kept = (
                    item.data if tags is None else self.batches.select(item.data, tags, plan.group)
                )
            runs = () if kept is None else self.batches.chunks(kept)
            if missing := missing_chunks(runs, plan.last_chunk if begin == plan.first else 0):
                if begin > plan.first:
                    break
                return self._chunks(plan, missing[:2])
            stamp = 0 if item.kind == RowKind.VOID else item.stamp
            kind = (
                item.kind if end == item.next or item.kind == RowKind.VOID else RowKind.BATCH_MORE
            )
            built.add(Row(kind, end - begin, stamp, len(item.data)), kept)
        return Portion(plan.first, built.next, tuple(built.rows), (), tuple(built.data))

    def _chunks(self, plan: Plan, indexes: Sequence[int]) -> Portion:
        data = tuple(self.log.chunks[index] for index in indexes)
        told = tuple(Chunk(i, len(one)) for i, one in zip(indexes, data, strict=True))
        return Portion(plan.first, plan.first, (), told, data)

    # -- what happens to it ------------------------------------------------------------------

    @property
    def appended(self) -> int:
        """The end of the log, what is not committed included."""
        return self.log.items[-1].next if self.log.items else self.end

    def publish(
        self, messages: Sequence[tuple[str, int]], kind: RowKind, chunks: int = 0, *,
        is_same_stamp: bool = False,
    ) -> None:  # fmt: skip
        """Append a batch, which is not committed yet: (tag, value) of each message."""
        first = self.appended
        self.stamp += 0 if is_same_stamp else 1
        if kind == RowKind.VOID:
            self.next_index += 1
            self.log.items.append(Item(first, first + len(messages), self.stamp, kind))
            return
        runs: tuple[tuple[int, int], ...] = ()
        if chunks:
            runs = ((self.next_index, chunks),)
            for index in range(self.next_index, self.next_index + chunks):
                piece = index.to_bytes(8, "little")
                self.log.chunks[index] = sealed(piece, self.group)
        self.next_index += chunks + 1
        rows = tuple((n, *message) for n, message in enumerate(messages))
        packed = Packed(first, len(rows), self.stamp, rows, runs)
        data = sealed(msgspec.msgpack.encode(packed), self.group)
        self.log.items.append(Item(first, first + len(rows), self.stamp, kind, data))

    def join(self, partition: int) -> None:
        """Append an entry about the roster, which is committed with what comes before it."""
        number = len(self.log.roster)
        self.log.roster.append(roster_entry(number, self.appended, partition + 1))

    def commit(self, count: int) -> None:
        """Commit the next items, and the entries about the roster that lie before their end."""
        log = self.log
        for item in log.items[log.committed : log.committed + count]:
            log.committed += 1
            if item.kind == RowKind.VOID:
                void = Told(item.stamp, "", 0, is_void=True)
                log.truth += [void] * (item.next - item.first)
            else:
                rows = unpacked(item.data).rows
                log.truth += [Told(item.stamp, tag, value) for _, tag, value in rows]
        while log.roster_committed < len(log.roster):
            if log.roster[log.roster_committed].offset > len(log.truth):
                break
            log.roster_committed += 1

    def promise(self, partitions: int, stamp: int) -> None:
        """Promise that all to come is stamped above: possible once all is committed."""
        if self.log.committed == len(self.log.items):
            self.stamp = max(self.stamp, stamp)
            if self.mark is None or self.mark.stamp <= self.stamp:
                self.mark = Mark(partitions, self.stamp, self.end)

    def change_leader(self) -> None:
        """Another node leads: what was not committed is gone, and its offsets are given anew."""
        log = self.log
        del log.items[log.committed :]
        del log.roster[log.roster_committed :]
        self.stamp += 1

    def promote(self, lost: int) -> int:
        """A set without the newest committed items is promoted: a lineage begins at a fork, which
        is returned.
        """
        self.change_leader()
        log = self.log
        keep = max(log.committed - lost, 0)
        while keep and log.items[keep - 1].next < self.start:
            keep += 1
        fork = max(log.items[keep].first if keep < len(log.items) else self.end, self.start)
        if any(item.first < fork < item.next for item in log.items):
            fork = self.end
        kept = [item for item in log.items if item.next <= fork]
        self.lineage += 1
        self.forks.append((self.lineage, fork))
        roster = [entry for entry in log.roster if entry.offset < fork or fork == self.end]
        self.log = Log(kept, roster, dict(log.chunks), log.truth[:fork], len(kept), len(roster))
        self.truths[self.lineage] = self.log.truth
        self.mark = None
        return fork

    def retain(self, target: int, now_ms: int) -> None:
        """Let go what lies below an offset, as far as no child needs it, or too much is held."""
        holds = self.upper.holds
        needed = holds.lowest(now_ms, self.end)
        kept, _ = holds.keep(now_ms, self.end, self.affordable)
        start = max(self.start, min(target, kept, self.end))
        if start > needed:
            self.forced = max(self.forced, start)
        self.start = start
        self.log.items = [item for item in self.log.items if item.next > start]
        self.log.committed = sum(item.next <= self.end for item in self.log.items)
