"""When delayed messages are due: the leader's alarm clock of one partition, shared by all clusters.

A cluster that meets delayed messages passes them by and waits for them here. When the first of a
batch is due, its DUE column is read from the log, once for all clusters that wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from weir.broker.consumers.modes.picker import PickerContext, Run
from weir.broker.runtime.reads import batches_in
from weir.broker.state.delays import Row
from weir.broker.state.ranges import Ranges
from weir.codec.fields import Buffer
from weir.errors import BadBatch, Refused
from weir.model.batch import Columns
from weir.model.limits import BATCH_MESSAGES_MAX, MIB, RETRY_AFTER_MS

#: An alarm is one number, for there may be a million: due time, first offset, messages - 1.
_COUNT_BITS = BATCH_MESSAGES_MAX.bit_length() - 1
_FIRST_BITS = 63
#: How many columns are read at a time, and how many bytes of those that were are kept.
_OPENING_MAX = 16
_COLUMNS_BYTES_MAX = 8 * MIB


class DelayedMessages:
    """What one cluster passed by: messages that are not due, and those that have become so."""

    __slots__ = ("due", "waiting")

    def __init__(self) -> None:
        """Begin with none."""
        self.waiting = Ranges()
        self.due = Ranges()

    def let_go(self, first: int, behind: int) -> None:
        """Messages are due: what waits of them may be granted."""
        for run in self.waiting.within(first, behind):
            self.due.add(*run)
        self.waiting.discard(first, behind)

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone."""
        self.waiting.discard(0, start)
        self.due.discard(0, start)


class DueTimes:
    """Alarms for batches of which some cluster waits for messages."""

    __slots__ = (
        "_alarms", "_columns", "_columns_bytes", "_context", "_delayed", "_opening",
    )  # fmt: skip

    def __init__(self, context: PickerContext) -> None:
        """Begin with no alarm; when a column comes late, all clusters are served."""
        self._context = context
        self._alarms: list[int] = []
        self._delayed: dict[str, DelayedMessages] = {}
        #: The batches whose columns are being read, by first offset.
        self._opening: set[int] = set()
        #: The DUE columns that were read last.
        self._columns: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._columns_bytes = 0

    @property
    def is_opening(self) -> bool:
        """Whether a DUE column is being read."""
        return bool(self._opening)

    def join(self, name: str) -> DelayedMessages:
        """Return what the cluster `name` passes by, which is nothing yet."""
        delayed = self._delayed[name] = DelayedMessages()
        return delayed

    def leave(self, name: str) -> None:
        """Forget a cluster."""
        self._delayed.pop(name, None)

    def wait(self, delayed: DelayedMessages, row: Row, first: int, behind: int) -> None:
        """Let [first, behind), some of a row's messages, wait until they are due."""
        known = row.least > self._context.due_ms() and self._is_awaited(row)
        delayed.waiting.add(first, behind)
        if not known:
            self._set(row.least, row.first, row.next)

    def fire(self) -> None:
        """Let messages go that have become due."""
        now_ms = self._context.due_ms() if self._alarms else 0
        while self._alarms and len(self._opening) < _OPENING_MAX:
            least, first, behind = _parts(self._alarms[0])
            if least > now_ms:
                return
            rung = heapq.heappop(self._alarms)
            while self._alarms and self._alarms[0] == rung:
                heapq.heappop(self._alarms)  # set by another cluster that came late to it
            row = self._context.state.delays.of(first)
            if row is None or row.greatest <= now_ms:
                self._let_go(first, behind)  # a row that is gone is past, or its messages are gone
            elif first not in self._opening and self._is_awaited(row):
                self._open(row)

    def _open(self, row: Row) -> None:
        column = self._columns.get(row.first)
        if column is not None:
            self._columns.move_to_end(row.first)
            self._sort(row, column)
            return
        reading = self._context.read(row.first, row.first + 1, 1)
        if reading is None:  # it is lost on this node
            self._again(row)
            return
        self._opening.add(row.first)
        asked = True

        def opened(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            self._opening.discard(row.first)
            found = None if failure else _dues_in(payloads, row.first)
            if found is None:
                self._again(row)
                return
            self._keep(row.first, found)
            self._sort(row, found)
            if not asked:
                self._context.granter.serve_all()

        self._context.reads.start(reading, opened)
        asked = False

    def _again(self, row: Row) -> None:
        self._set(self._context.due_ms() + RETRY_AFTER_MS, row.first, row.next)

    def _sort(self, row: Row, dues: Sequence[int]) -> None:
        """Let go what is due of a batch; for the rest, set the alarm anew."""
        now_us = self._context.due_ms() * 1000
        for first, behind in _runs(bytes(map(now_us.__ge__, dues))):
            self._let_go(row.first + first, row.first + behind)
        if self._is_awaited(row):
            following = min(filter(now_us.__lt__, dues))
            self._set(_ceiling_ms(following), row.first, row.next)

    def _let_go(self, first: int, behind: int) -> None:
        for delayed in self._delayed.values():
            delayed.let_go(first, behind)

    def _is_awaited(self, row: Row) -> bool:
        return any(one.waiting.within(row.first, row.next) for one in self._delayed.values())

    def _set(self, at_ms: int, first: int, behind: int) -> None:
        alarm = (at_ms << _FIRST_BITS | first) << _COUNT_BITS | (behind - first - 1)
        heapq.heappush(self._alarms, alarm)

    def _keep(self, first: int, column: Sequence[int]) -> None:
        self._columns[first] = column
        self._columns_bytes += 8 * len(column)
        while self._columns_bytes > _COLUMNS_BYTES_MAX and len(self._columns) > 1:
            _, oldest = self._columns.popitem(last=False)
            self._columns_bytes -= 8 * len(oldest)


def _ceiling_ms(due_us: int) -> int:
    return -(-due_us // 1000)


def _parts(alarm: int) -> tuple[int, int, int]:
    count = (alarm & ((1 << _COUNT_BITS) - 1)) + 1
    alarm >>= _COUNT_BITS
    first = alarm & ((1 << _FIRST_BITS) - 1)
    return alarm >> _FIRST_BITS, first, first + count


def _dues_in(payloads: Sequence[Buffer], first: int) -> Sequence[int] | None:
    """Return the DUE column of the batch that begins at offset `first`."""
    try:
        for batch in batches_in(payloads):
            if batch.header.first_offset == first and batch.piece is None:
                column = batch.numbers(Columns.DUE)
                return None if column is None else memoryview(bytes(column)).cast("q")
    except BadBatch:
        return None
    return None


def _runs(flags: bytes) -> Iterator[Run]:
    """Yield the runs of ones."""
    at = flags.find(b"\1")
    while at >= 0:
        end = flags.find(b"\0", at)
        end = len(flags) if end < 0 else end
        yield at, end
        at = flags.find(b"\1", end)
