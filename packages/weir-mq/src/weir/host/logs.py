"""The logs of a shard, as every host runs them: how each starts, and who runs each flush.

A durable-position file names how far a log is durable. What a start stages for its first flush is
not: a node that is killed before that flush would find its log shorter than the file says, and
never start again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import NamedTuple, Protocol

from weir.broker.api import events as ev
from weir.broker.api.effects import StartFlush
from weir.broker.replica.checkpoints import Opened
from weir.model.limits import KIB
from weir.storage.disk import Disk
from weir.storage.format.durable_position import DurablePosition
from weir.storage.log import Flush
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings

#: A flush of one writer, or two: more of it, or more of them, and what comes meanwhile is to be
#: read while the disk works.
LONE_BYTES = 64 * KIB
LONE_TOKENS = 2
#: Requests of peers since the flush before: if there are more, others are under way, which can be
#: read while the disk works.
LONE_ASKED = 3
#: A crowd's flushes are small now and then: so many in a row are no crowd's.
LONE_IN_A_ROW = 8
#: What flushes may take on average to be run inline: a hand-over to a thread and back takes a tenth
#: of a millisecond, which is nothing to a slower disk.
QUICK_SECONDS = 0.001
#: Of about how many flushes the average is.
QUICK_OF = 32


class _LogFlushes:
    """What is known of the flushes of one log."""

    __slots__ = ("mean_seconds", "rests_until", "small")

    def __init__(self) -> None:
        #: Of a disk of which little is known: it is thought slow for some 50 flushes.
        self.mean_seconds = 4 * QUICK_SECONDS
        #: How many small flushes there were in a row.
        self.small = 0
        #: Until when the log rests behind the flush under way, which is of a crowd; 0: not at all.
        self.rests_until = 0.0


class FlushSchedule:
    """Says which flushes a host runs inline, behind the turn that asked for them: lone ones, of a
    log that is not busy, on a quick disk. All others run beside it.

    To hand a lone flush over and back takes about as long as a quick disk takes for it. A shard
    that other nodes listen to has none run inline: its beats must not wait for its disk. A disk
    that stalls once for half a minute holds the host up once: it is thought slow then, for some 230
    flushes.
    """

    __slots__ = ("_linked", "_logs", "_time", "asked", "inline")

    def __init__(self, logs: Iterable[int], linked: Sized, time: Callable[[], float]) -> None:
        """Know nothing of the disks of `logs`. While `linked` is not empty, other nodes listen.
        `time` gives seconds since whenever, and never falls.
        """
        self._logs = {number: _LogFlushes() for number in logs}
        self._linked = linked
        self._time = time
        #: What is about to run inline, by the log's number.
        self.inline: dict[int, Flush] = {}
        #: How many things peers asked for since a flush was started.
        self.asked = 0

    def start(self, effect: StartFlush) -> bool:
        """Return whether the host runs this flush itself, once it has carried out what it was asked
        for with it: it takes it out of `inline` then. If not, it hands it over now.
        """
        flush, runs = effect.flush, effect.flush.runs
        asked, self.asked = self.asked, 0
        known = self._logs[effect.log]
        if effect.rest_ms:
            known.rests_until = self._time() + effect.rest_ms / 1_000
        is_small = (
            asked <= LONE_ASKED
            and len(runs) == 1
            and runs[0].missing is None
            and len(flush.tokens) <= LONE_TOKENS
            and flush.end - flush.start <= LONE_BYTES
        )
        known.small = known.small + 1 if is_small else 0
        is_lone = known.small > LONE_IN_A_ROW and known.mean_seconds <= QUICK_SECONDS
        if not is_lone or effect.rest_ms or self._linked:
            return False
        self.inline[effect.log] = flush
        return True

    def flushed(self, log: int, flush: Flush, seconds: float) -> tuple[ev.Flushed, float]:
        """Return the event for the shard of a flush that is durable and took `seconds`; and after
        how many seconds it is told that the log has `Rested`, 0 for never.
        """
        known = self._logs[log]
        known.mean_seconds += (seconds - known.mean_seconds) / QUICK_OF
        rest = 0.0
        if known.rests_until:
            rest = max(known.rests_until - self._time(), 0.0)
            known.rests_until = 0.0
        return ev.Flushed(log, flush, rest > 0), rest


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
