"""A log that a shard starts on, and what its durable-position file is told of it then.

The file names what is durable. What a start stages for its first flush is not: a node that is
killed before that flush would find its log shorter than the file says, and never start again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from weir.broker.replica.restore import Opened
from weir.storage.disk import Disk
from weir.storage.format.durable_position import DurablePosition
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings


class LogStart(NamedTuple):
    """A recovered log, and the position below which recovery made all of it durable."""

    opened: Opened
    durable: int


class PositionFile(Protocol):
    """Saves how far a log is durable."""

    def reached(self, position: int) -> None:
        """All of the log below a position is durable."""


def open_log(disk: Disk, settings: Settings, file: DurablePosition) -> LogStart:
    """Recover a log that was durable as far as `file` says.

    Raises what `recover` raises: `LogDamaged`, `DiskFailed`.
    """
    recovered = recover(disk, settings, file.position)
    opened = Opened(recovered.log, recovered.groups, recovered.body, recovered.holes)
    return LogStart(opened, recovered.tail)


def tell_durable(starts: Iterable[LogStart], savers: Mapping[int, PositionFile]) -> None:
    """Tell the saver of each log, by its number, how far that is durable by its recovery; at any
    time before the first flush is over.
    """
    for start in starts:
        savers[start.opened.log.settings.log].reached(start.durable)
