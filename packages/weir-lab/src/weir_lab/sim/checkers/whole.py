"""What readers promise beside an order: that nothing is left out."""

from __future__ import annotations

from collections.abc import Iterator

from weir_lab.sim.checkers.one_order import Log, log_of
from weir_lab.sim.history import UNKNOWN, History, Reading
from weir_lab.sim.observations import UNREAD, Row


class ReadWhole:
    """A reader of a partition gets each of its messages once, in order, from where it begins; and
    one that reads to the end gets all messages that were confirmed before it began.
    """

    name = "ReadWhole"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was read with what is there, and with what had been confirmed."""
        if not history.readings:
            return
        log = log_of(history)
        for reading in history.readings:
            if reading.partition >= 0:
                yield from self._compare(reading, log, history.starts.get(reading.partition, 0))
            if reading.cut >= 0:
                yield from left_out(reading, history)

    @staticmethod
    def _compare(reading: Reading, log: Log, least: int) -> Iterator[str]:
        partition = reading.partition
        first = reading.start.get(partition, 0)
        there = log[partition]
        expected = (offset for offset in sorted(there) if offset >= first)
        for number, row in enumerate(reading.rows):
            if row.value == UNREAD and row.offset < least and row.offset not in there:
                continue  # nobody saw its value before retention took it
            offset = next(expected, None)
            while offset is not None and offset < min(row.offset, least):
                offset = next(expected, None)  # retention was faster
            belongs = None
            if offset is not None:
                belongs = Row(there[offset][0], partition, offset, there[offset][1])
            if not row.is_like(belongs):
                yield f"{reading.reader} read {row} as number {number}, where {offset} belongs"
                return


def left_out(reading: Reading, history: History) -> Iterator[str]:
    """Compare a reading to the end with what had been confirmed when it began."""
    got = {(row.partition, row.offset) for row in reading.rows}
    for publish in history.publishes:
        partition = publish.partition
        if publish.early or not publish.values or reading.partition not in (-1, partition):
            continue
        least = max(reading.start.get(partition, 0), history.starts.get(partition, 0))
        for confirmed in publish.confirms:
            known = confirmed.offset != UNKNOWN and confirmed.at < reading.cut
            if not known or confirmed.offset < least:
                continue
            if (partition, confirmed.offset) not in got and not _is_in_doubt(
                history, partition, reading.cut
            ):
                yield (
                    f"{reading.reader} began to read to the end at {reading.cut}, and left out "
                    f"{confirmed.offset} of {partition}, which was confirmed at {confirmed.at}"
                )


def _is_in_doubt(history: History, partition: int, cut: int) -> bool:
    """Whether some scattering was not known to be decided at a time: until it is, nobody is shown
    what is behind any attempt at it.
    """
    return any(
        publish.scattered
        and publish.partition == partition
        and publish.sent <= cut
        and min((confirmed.at for confirmed in publish.confirms), default=cut + 1) > cut
        for publish in history.publishes
    )
