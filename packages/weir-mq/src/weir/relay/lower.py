"""Pulls from upper nodes: the lower side of a hop.

One pull is under way at a time. It goes to the first upper node in the order of preference that is
not left alone for a while: because it did not answer, sent what fails its checks three times, does
not have what is asked for, or has no room. What came is checked here, and the caller stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weir.errors import BadBatch
from weir.model.ids import LIMIT_MAX, partition_of, topic_of
from weir.model.limits import RELAY_CREDIT_BYTES_MAX, ROSTER_ENTRIES_MAX
from weir.relay.messages import (
    UNKNOWN,
    Answer,
    AnyRefusal,
    AskFilter,
    Behind,
    FilterFrom,
    FilterNotCovered,
    LineageEnded,
    OffsetOutOfRange,
    Overloaded,
    Pull,
    SayHold,
    TopicGone,
)
from weir.relay.ports import Alarm, Effect, SendToUpper, UpperNode
from weir.relay.rows import HOLDS_BATCH, Batches, Tags, covers, pack_tags
from weir.relay.state import RelayState

#: An answer that did not come by then is waited for no more.
ANSWER_MS = 5_000
#: Bad bytes are asked for again so often before another node is asked.
BAD_ANSWERS_MAX = 3
#: How long a node is left alone that sent bad bytes, or none; and that cannot serve now.
AVOID_MS = 10_000
#: And the core, which all others come behind: nothing else may be left to ask.
AVOID_CORE_MS = 1_000
RETRY_MS = 200
#: How often upper nodes are told what is needed that are not pulled from.
SAY_EVERY_MS = 10_000
#: So often a node may say that it does not cover a filter yet before the next one is asked.
ASKS_EACH = 5
#: In the mean a partition pulls no more often, in seconds, after so many pulls at once: a pull and
#: the flush behind it cost nearly the same whatever they bring (ADR 0146).
PULL_EVERY = 0.016
PULLS_AT_ONCE = 8


class Me(NamedTuple):
    """The pulling relay: system, BrokerSet and node, and the group that it pulls."""

    system: int
    brokerset: int
    node: int
    group: int


class Verified(NamedTuple):
    """The pieces of an answer that passed all checks: its chunks, and then its batches."""

    chunks: tuple[memoryview, ...]
    batches: tuple[memoryview, ...]


class _Upper(msgspec.Struct):
    """What is known of an upper node: until when it is left alone, and below which offset it lacks
    what the filter lets through.
    """

    avoid_until_ms: int = 0
    lacks_below: int = 0
    bad: int = 0


class _Asked(msgspec.Struct):
    """A request under way: its number, the upper node that it went to, and when."""

    number: int
    upper: UpperNode
    since_ms: int
    tags: Tags
    until: int = LIMIT_MAX


class Lower:
    """The lower side of one partition."""

    __slots__ = (
        "_asked", "_asks", "_batches", "_filter_asked", "_known", "_me", "_number", "_said_ms",
        "_say_every_ms", "_uppers",
    )  # fmt: skip

    def __init__(
        self, me: Me, batches: Batches, first_number: int, say_every_ms: int = SAY_EVERY_MS
    ) -> None:
        """Pull as `me`. Numbers of pulls begin at one that was not used before a restart."""
        self._say_every_ms = say_every_ms
        self._said_ms = 0
        self._me = me
        self._batches = batches
        self._number = first_number
        self._uppers: tuple[UpperNode, ...] = ()
        self._known: dict[UpperNode, _Upper] = {}
        self._asked: _Asked | None = None
        self._filter_asked: _Asked | None = None
        #: How often in turn an upper node was asked for a filter.
        self._asks = 0

    def use(self, uppers: tuple[UpperNode, ...]) -> None:
        """Pull from these nodes from now on, the preferred one first."""
        self._uppers = uppers
        self._known = {one: self._known.get(one, _Upper()) for one in uppers}
        if self._asked is not None and self._asked.upper not in self._known:
            self._asked = None
        if self._filter_asked is not None and self._filter_asked.upper not in self._known:
            self._filter_asked = None

    # -- pulls -------------------------------------------------------------------------------

    def is_waiting(self, now_ms: int) -> bool:
        """Whether a pull is under way."""
        return self._asked is not None and now_ms - self._asked.since_ms < ANSWER_MS

    def pull(
        self, state: RelayState, durable_through: int, awaited: int, now_ms: int
    ) -> list[Effect]:
        """Pull what comes next, unless a pull is under way."""
        effects: list[Effect] = []
        asked = self._asked
        if self.is_waiting(now_ms):
            return effects
        if asked is not None:
            self._avoid(asked.upper, now_ms)
            effects.append(Alarm("relay-upper-silent", f"{asked.upper} answers no pull"))
            self._asked = None
        offset = state.end if state.begun else UNKNOWN
        upper = self._choose(offset, now_ms)
        if upper is None:
            return effects
        now, until = state.filter_at(state.end), state.filter_ends()
        tags = now.tags if now is not None else None
        self._number += 1
        self._asked = _Asked(self._number, upper, now_ms, tags, until)
        me = self._me
        pull = Pull(
            me.system, me.brokerset, me.node, topic_of(me.group), partition_of(me.group),
            self._number, state.lineage, offset, now.version if now is not None else 0,
            pack_tags(tags), RELAY_CREDIT_BYTES_MAX, durable_through, until, len(state.roster),
            state.last_chunk, awaited,
        )  # fmt: skip
        effects.append(SendToUpper(upper, pull))
        return effects

    def say_holds(self, state: RelayState, durable_through: int, now_ms: int) -> list[Effect]:
        """Tell the upper nodes that are not pulled from what is needed, if that is due."""
        if not state.begun or now_ms - self._said_ms < self._say_every_ms:
            return []
        self._said_ms = now_ms
        pulled = self._asked.upper if self._asked is not None else None
        me = self._me
        said = SayHold(
            me.system, me.brokerset, me.node, topic_of(me.group), partition_of(me.group),
            state.lineage, durable_through,
        )  # fmt: skip
        return [SendToUpper(upper, said) for upper in self._uppers if upper != pulled]

    def _choose(self, offset: int, now_ms: int) -> UpperNode | None:
        for upper in self._uppers:
            known = self._known[upper]
            if known.avoid_until_ms <= now_ms and known.lacks_below <= max(offset, 0):
                return upper
        return None

    def _avoid(self, upper: UpperNode, now_ms: int) -> None:
        """Ask others for a while."""
        while_ms = AVOID_CORE_MS if upper.is_core else AVOID_MS
        self._known[upper].avoid_until_ms = now_ms + while_ms

    def forget(self) -> None:
        """The log was cut: what is under way is for another one."""
        self._asked = None
        for known in self._known.values():
            known.lacks_below = 0

    def check(
        self, upper: UpperNode, answer: Answer, data: memoryview, state: RelayState, now_ms: int
    ) -> tuple[Verified | None, list[Effect]]:
        """Check what came. None if it answers no pull that is under way, or is bad; after three bad
        answers the next upper node is asked, with an alarm.
        """
        asked = self._asked
        if asked is None or asked.upper != upper or asked.number != answer.number:
            return None, []
        self._asked = None
        now = state.filter_at(state.end)
        if now is None or now.tags != asked.tags or asked.until > state.filter_ends():
            return None, []  # a filter was set since then
        try:
            verified = self._verify(answer, data, asked.until, state)
        except BadBatch as error:
            return None, self._refuse(upper, str(error), now_ms)
        self._known[upper].bad = 0
        return verified, []

    def _refuse(self, upper: UpperNode, reason: str, now_ms: int) -> list[Effect]:
        known = self._known[upper]
        known.bad += 1
        if known.bad < BAD_ANSWERS_MAX:
            return []
        known.bad = 0
        self._avoid(upper, now_ms)
        text = f"group {self._me.group}: {upper} sent bad bytes {BAD_ANSWERS_MAX} times: {reason}"
        return [Alarm("relay-bad-bytes", text)]

    def _verify(self, answer: Answer, data: memoryview, until: int, state: RelayState) -> Verified:
        group = self._me.group
        follows = answer.first == state.end and answer.next <= until
        if answer.group != group or answer.lineage != state.lineage or not follows:
            raise BadBatch(
                f"[{answer.first}, {answer.next}) of lineage {answer.lineage} of group "
                f"{answer.group} does not go on at {state.end}"
            )
        if answer.roster and answer.roster[0].number != len(state.roster):
            raise BadBatch(f"roster entry {answer.roster[0].number} is not the next one")
        if len(state.roster) + len(answer.roster) > ROSTER_ENTRIES_MAX:
            raise BadBatch(f"more than {ROSTER_ENTRIES_MAX:,} roster entries")
        chunks, at = [], 0
        last_chunk = state.last_chunk
        for chunk in answer.chunks:
            piece = data[at : at + chunk.size]
            if chunk.core_index <= last_chunk:
                raise BadBatch(f"chunk {chunk.core_index} is not behind {last_chunk}")
            self._batches.check_chunk(piece, group)
            chunks.append(piece)
            last_chunk = chunk.core_index
            at += chunk.size
        batches, offset, stamp = [], answer.first, state.last_stamp
        for row in answer.rows:
            if row.kind in HOLDS_BATCH:
                piece = data[at : at + row.size]
                facts = self._batches.check(piece, group)
                if not facts.first <= offset or offset + row.count > facts.next:
                    raise BadBatch(f"a batch of [{facts.first}, {facts.next}) at {offset}")
                if facts.stamp != row.stamp or facts.stamp < stamp:
                    raise BadBatch(f"stamp {facts.stamp} behind {stamp}, told as {row.stamp}")
                self._has_chunks(facts.chunks, state)
                stamp = facts.stamp
                batches.append(piece)
                at += row.size
            offset += row.count
        return Verified(tuple(chunks), tuple(batches))

    def _has_chunks(self, runs: Sequence[tuple[int, int]], state: RelayState) -> None:
        if not all(state.chunks.has_run(first, count) for first, count in runs):
            raise BadBatch("a large value without its chunks")

    # -- refusals ----------------------------------------------------------------------------

    def refused(
        self, upper: UpperNode, refusal: AnyRefusal, state: RelayState, now_ms: int
    ) -> AnyRefusal | None:
        """Take a refusal. What the log has to say to it is returned: a fork, the end of the topic,
        or that the core has lost what was asked for; else another node, or a later time, will do.
        """
        asked = self._asked
        if asked is None or asked.upper != upper or asked.number != refusal.number:
            return None
        self._asked = None
        known = self._known[upper]
        match refusal:
            case TopicGone() if upper.is_core:
                return refusal
            case LineageEnded(lineage=lineage) if lineage > state.lineage:
                return refusal
            case OffsetOutOfRange(start=start) if not state.begun:
                return refusal
            case OffsetOutOfRange(start=start) if start > state.end:
                if upper.is_core:
                    return refusal
                known.lacks_below = start
            case FilterNotCovered(offset=offset) if offset > state.end:
                known.lacks_below = offset
            case Overloaded(retry_after_ms=wait):
                known.avoid_until_ms = now_ms + max(wait, 1)
            case Behind() | FilterNotCovered():
                known.avoid_until_ms = now_ms + RETRY_MS
            case _:
                self._avoid(upper, now_ms)
        return None

    # -- filters -----------------------------------------------------------------------------

    def ask_filter(self, tags: Tags, now_ms: int) -> list[Effect]:
        """Ask an upper node from where on it keeps all of these tags; the next one in turn if one
        has said several times that it does not know yet.
        """
        asked = self._filter_asked
        if asked is not None and now_ms - asked.since_ms < RETRY_MS:
            return []
        if not self._uppers:
            return []
        upper = self._uppers[self._asks // ASKS_EACH % len(self._uppers)]
        self._asks += 1
        self._number += 1
        self._filter_asked = _Asked(self._number, upper, now_ms, tags)
        me = self._me
        question = AskFilter(
            me.system, me.brokerset, me.node, topic_of(me.group), partition_of(me.group),
            self._number, pack_tags(tags),
        )  # fmt: skip
        return [SendToUpper(upper, question)]

    def filter_told(self, upper: UpperNode, told: FilterFrom, wanted: Tags) -> int:
        """Return from where on an upper node keeps what is wanted; -1 if it does not, or was asked
        for something else.
        """
        asked = self._filter_asked
        if asked is None or asked.upper != upper or asked.number != told.number:
            return UNKNOWN
        if told.offset == UNKNOWN:
            return UNKNOWN
        self._filter_asked = None
        self._asks = 0
        return told.offset if covers(asked.tags, wanted) else UNKNOWN


class PullPace:
    """When the next pull of a partition may be sent."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        """Nothing was pulled yet."""
        #: When the last pull would have been sent at an even pace.
        self._due = 0.0

    def delay(self, now: float, *, catches_up: bool) -> float:
        """Return in how many seconds a pull is to be sent. One that `catches_up` goes at once: what
        is left above is more than what came last.
        """
        due = max(self._due, now) + PULL_EVERY
        early = due - PULLS_AT_ONCE * PULL_EVERY - now
        if catches_up:
            self._due = min(due, now + PULLS_AT_ONCE * PULL_EVERY)
            return 0.0
        self._due = due
        return max(early, 0.0)
