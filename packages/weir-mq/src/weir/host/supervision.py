"""What the supervisor of a node decides about the processes of its shards.

A host tells what happens to them, and does what is returned, in order.
"""

from __future__ import annotations

from collections import deque

import msgspec

from weir.errors import WeirError
from weir.host.ports import Log

#: A shard that ends so often within so many seconds ends the node.
ENDS_MAX = 5
ENDS_WITHIN_SECONDS = 60.0
#: How often a shard says that it is alive, and how often that is checked.
ALIVE_SECONDS = 1.0
#: From the end of a process to its next start, at first, and from that of a trunk to a new one.
FIRST_PAUSE_SECONDS = 0.1
#: A shard that was not heard of at so many looks does not serve, until it is heard of again.
LOOKS_MISSED_MAX = 3


class NodeFailed(WeirError):
    """The node cannot go on; the message says which shard, and why."""


class DiskGone(NodeFailed):
    """A shard's disk failed: nothing may be believed but what a restart reads."""


class AwayNotice(msgspec.Struct, frozen=True):
    """Tell a shard which of the node do not serve now, and which of those stand still."""

    shard: int
    away: tuple[int, ...]
    silent: tuple[int, ...]


class TrunkJoin(msgspec.Struct, frozen=True):
    """Give two shards the ends of a trunk."""

    asking: int
    serving: int


class ProcessKill(msgspec.Struct, frozen=True):
    """Kill a shard's process."""

    shard: int


class LostTrunk(msgspec.Struct, frozen=True):
    """A trunk that broke, between two lives of processes."""

    asking: int
    serving: int
    starts: tuple[int, int]


Action = AwayNotice | TrunkJoin | ProcessKill


class _Member(msgspec.Struct):
    """What is known of a shard's process."""

    shard: int
    #: How often it was started.
    starts: int = 0
    #: Whether there is a process to say something to, and whether it is up.
    there: bool = False
    ready: bool = False
    #: At how many looks it was not heard of.
    silence: int = 0
    #: When its processes ended, in seconds, as far as that counts.
    ends: deque[float] = msgspec.field(default_factory=deque)

    @property
    def serves(self) -> bool:
        """Whether it is up, and its loop turns."""
        return self.ready and self.silence < LOOKS_MISSED_MAX

    @property
    def silent(self) -> bool:
        """Whether it is up and stands still."""
        return self.there and self.ready and self.silence >= LOOKS_MISSED_MAX

    @property
    def about(self) -> dict[str, dict[str, int]]:
        """What a record of the log gives as its fields."""
        return {"fields": {"shard": self.shard}}


class Supervision:
    """The shards of a node: which of them serve, are joined, are killed, and are started again."""

    def __init__(
        self, shards: int, hang_seconds: float, look_seconds: float, pause_seconds: float, log: Log
    ) -> None:
        """Have no process yet. One that says nothing for `hang_seconds`, of looks every
        `look_seconds`, is killed. The first pause before a start is `pause_seconds`.
        """
        self._members = [_Member(shard) for shard in range(shards)]
        self._hang_seconds = hang_seconds
        self._looks_max = hang_seconds / look_seconds
        self._pause = pause_seconds
        self._log = log
        self._away: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    # -- processes ----------------------------------------------------------------------------

    def started(self, shard: int) -> list[Action]:
        """A process has started: it learns which shards are down, and is joined with all others,
        which learn of it in that way.
        """
        member = self._members[shard]
        member.starts += 1
        member.there, member.silence = True, 0
        return [AwayNotice(shard, *self._away), *self._join(member)]

    def heard(self, shard: int) -> list[Action]:
        """A process said something: its loop turns."""
        member = self._members[shard]
        goes_on, member.silence = member.silent, 0
        return self._who_serves() if goes_on else []

    def served(self, shard: int) -> list[Action]:
        """A process is up."""
        member = self._members[shard]
        member.ready = True
        if member.starts > 1:
            self._log.info("shard %d serves again", shard, extra=member.about)
        return self._who_serves()

    def gone(self, shard: int) -> list[Action]:
        """A process has ended."""
        member = self._members[shard]
        member.there = member.ready = False
        return self._who_serves()

    def is_up(self, shard: int) -> bool:
        """Return whether a shard has been up since its process began. One that is between two, or
        not up yet, has nothing under way: its next start reads its log.
        """
        member = self._members[shard]
        return member.there and member.ready

    def again(
        self, shard: int, how: str, disk_failed: bool, failed: Exception | None, now: float
    ) -> float:
        """Return after how many seconds to start a shard again that ended at `now`, by `how`.

        Raises `NodeFailed`, or what it `failed` of by its own words, if that makes no sense.
        """
        if disk_failed:
            raise DiskGone(f"shard {shard}: its disk failed")
        if failed is not None:
            raise failed
        member = self._members[shard]
        ends = member.ends
        ends.append(now)
        while ends[-1] - ends[0] > ENDS_WITHIN_SECONDS:
            ends.popleft()
        if len(ends) == ENDS_MAX:
            raise NodeFailed(
                f"shard {shard} ended {ENDS_MAX} times within {ENDS_WITHIN_SECONDS:g} s, the last "
                f"time by {how}: its earlier log lines say why"
            )
        self._log.error("shard %d ended by %s: it is restarted", shard, how, extra=member.about)
        return self._pause * 2.0 ** (len(ends) - 1)

    # -- looks --------------------------------------------------------------------------------

    def look(self) -> list[Action]:
        """Find processes that hang, and kill those that hang for too long.

        Looks are counted, not seconds: if this process hung too, no shard is to blame.
        """
        killed: list[Action] = []
        for member in self._members:
            # How long one takes to start depends on its logs; it may be busy with those.
            if not member.ready:
                continue
            member.silence += 1
            if member.silence == LOOKS_MISSED_MAX:
                self._log.warning("shard %d does not answer", member.shard, extra=member.about)
            if member.silence >= self._looks_max:
                text = "shard %d said nothing for %g s: it is killed"
                self._log.error(text, member.shard, self._hang_seconds, extra=member.about)
                killed.append(ProcessKill(member.shard))
        return [*killed, *self._who_serves()]

    def _who_serves(self) -> list[Action]:
        """Tell all of any change; who goes on gets trunks again."""
        away = tuple(member.shard for member in self._members if not member.serves)
        silent = tuple(member.shard for member in self._members if member.silent)
        if (away, silent) == self._away:
            return []
        (_, was_silent), self._away = self._away, (away, silent)
        actions: list[Action] = [
            AwayNotice(member.shard, away, silent) for member in self._members if member.there
        ]
        for shard in was_silent:
            if shard not in silent:
                actions += self._join(self._members[shard])
        return actions

    # -- trunks -------------------------------------------------------------------------------

    def lost(self, asking: int, serving: int) -> tuple[LostTrunk, float]:
        """A trunk broke: return what `replace` is told, and after how many seconds."""
        starts = self._members[asking].starts, self._members[serving].starts
        return LostTrunk(asking, serving, starts), self._pause

    def replace(self, trunk: LostTrunk) -> list[Action]:
        """Replace a trunk, unless a process ended meanwhile: that starts with new ones."""
        ends = self._members[trunk.asking], self._members[trunk.serving]
        same = trunk.starts == (ends[0].starts, ends[1].starts)
        if not same or any(one.silent or not one.there for one in ends):
            return []
        return [TrunkJoin(trunk.asking, trunk.serving)]

    def _join(self, member: _Member) -> list[Action]:
        """Give a process trunks to and from all others that go on."""
        found: list[Action] = []
        for other in self._members:
            if member.there and other is not member and other.there and not other.silent:
                found += TrunkJoin(member.shard, other.shard), TrunkJoin(other.shard, member.shard)
        return found
