"""One topic's order as one shard sees it: who leads its partitions, how far each is, and who waits.

What is known of partitions is soft state: its loss costs time, never order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from weir.broker.api.layout import Layout
from weir.broker.barriers.waiters import Asker, Scope
from weir.broker.forwarding.forwarder import Passing
from weir.broker.partition.leader import Leading
from weir.broker.partition.topics import Topics
from weir.broker.state.state import PartitionState
from weir.errors import NotLeader
from weir.model.ids import group_of
from weir.model.topic import Topic
from weir.order.barrier import NO_BARRIER, Barrier

_NEVER = (0, 0)


class Led(NamedTuple):
    """A partition that this shard leads."""

    partition: int
    group: int
    leading: Leading
    state: PartitionState


class Plan(NamedTuple):
    """All partitions of a scope: those led here, those that others lead, and where to ask."""

    partitions: list[int]
    led: list[Led]
    others: list[int]
    #: By partition, the place that leads it as far as is known, for some of the others.
    places: dict[int, int]


class Planner:
    """Finds out where partitions are led."""

    __slots__ = ("_layout", "_passing", "_topics")

    def __init__(self, topics: Topics, passing: Passing, layout: Layout) -> None:
        """Look at what is served here, and ask `passing` about the rest."""
        self._topics = topics
        self._passing = passing
        self._layout = layout

    def plan(self, topic: Topic, scope: Scope, joined: int) -> Plan:
        """Return where partitions of a topic are led, of which so many have `joined` for sure."""
        count = max(topic.partitions, topic.founded_with + joined)
        led: list[Led] = []
        others: list[int] = []
        places: dict[int, int] = {}
        for partition in self._of(topic.id, range(count), scope):
            group = group_of(topic.id, partition)
            here = self._topics.find(group)
            if here is not None and here.leading is not None:
                led.append(Led(partition, group, here.leading, here.state))
            elif scope is not Scope.LED:
                others.append(partition)
                with suppress(NotLeader):  # whoever asks learns by itself who leads it
                    place = self._passing.routes.toward(group)
                    if place != self._passing.shard:
                        places[partition] = place
        partitions = sorted([one.partition for one in led] + others)
        return Plan(partitions, led, others, places)

    def _of(self, topic: int, partitions: range, scope: Scope) -> Iterable[int]:
        if scope is not Scope.OWN:
            return partitions
        shard, shard_of = self._passing.shard, self._layout.shard_of
        return [p for p in partitions if shard_of(group_of(topic, p)) == shard]


class Domain:
    """What is known of the partitions of one topic, and who waits until they are further."""

    __slots__ = ("_behind", "_behind_here", "_heard", "_looked_for", "_waiting", "asked_ms",
                 "ends", "plan", "planned_at", "registers", "roster", "scope", "topic")  # fmt: skip

    def __init__(self, topic: int, scope: Scope) -> None:
        """Nothing is known of a topic, by its id."""
        self.topic = topic
        self.scope = scope
        self.asked_ms = 0
        self.registers: dict[int, Barrier] = {}
        self.roster: tuple[tuple[int, int], ...] = ()
        #: Those that have ended: nothing of them is above that stamp, or behind that offset.
        self.ends: dict[int, Barrier] = {}
        #: Where its partitions are led, as of a number of changes of leaders and of the roster.
        self.plan = Plan([], [], [], {})
        self.planned_at = (-1, -1)
        #: By partition, the newest question in whose answer it was told.
        self._heard: dict[int, int] = {}
        self._waiting: list[tuple[int, int, Asker]] = []
        #: Of whom waits for the lowest stamp: those not known to be there, here and elsewhere.
        self._behind_here: list[Led] = []
        self._behind: list[int] = []
        self._looked_for = _NEVER

    def take(self, registers: Iterable[tuple[int, int, int]], question: int = 0) -> None:
        """Keep what somebody who leads, or led, said of partitions, as far as it is news: of each
        its number, a stamp, and the offset behind all that is stamped at or below that.
        """
        known, heard = self.registers, self._heard
        for partition, stamp, through in registers:
            if stamp > known.get(partition, NO_BARRIER).stamp:
                known[partition] = Barrier(stamp, through)
            if question and question > heard.get(partition, 0):
                heard[partition] = question

    def learn(self, roster: Iterable[tuple[int, int]]) -> None:
        """Keep the longest roster: it only grows."""
        self.roster = max(self.roster, tuple(roster), key=len)

    def learn_end(self, partition: int, stamp: int, offset: int) -> None:
        """Keep that a partition has ended: nobody waits for it any more."""
        self.ends[partition] = Barrier(stamp, offset)

    def known(self, stamp: int) -> list[tuple[int, int, int]]:
        """Return what is known of all partitions to tell who asked for `stamp`: as in `take`."""
        registers, ends = self.registers, self.ends
        told = [(p, *registers.get(p, NO_BARRIER)) for p in self.plan.partitions]
        if not ends:
            return told
        # All of one that ended lies there, whatever stamp it is compared with.
        return [(p, max(ends[p].stamp, stamp), ends[p].through) if p in ends else (p, at, through)
                for p, at, through in told]  # fmt: skip

    def add(self, asker: Asker) -> None:
        """Let somebody wait."""
        heapq.heappush(self._waiting, (asker.stamp, asker.number, asker))

    @property
    def first(self) -> Asker | None:
        """Who waits for the lowest stamp: nobody is told before it."""
        while self._waiting and self._waiting[0][2].is_over:
            heapq.heappop(self._waiting)
        return self._waiting[0][2] if self._waiting else None

    def take_plan(self, plan: Plan, at: tuple[int, int]) -> None:
        """Go by where partitions are led now."""
        self.plan, self.planned_at = plan, at
        self._looked_for = _NEVER

    def is_behind(self, asker: Asker, fenced: Callable[[int], int]) -> bool:
        """Return whether some partition is not where somebody waits for it. Each is looked at until
        it is there once; `fenced` says what was promised for those that are led here.
        """
        if self._looked_for != (asker.stamp, asker.after):
            self._looked_for = asker.stamp, asker.after
            self._behind_here = list(self.plan.led)
            self._behind = self._not_at(self.plan.others, asker)
        here, others = self._behind_here, self._behind
        del here[self.see(here, fenced, asker.stamp) :]
        if others and not here and not self._not_at(others[-1:], asker):
            others[:] = self._not_at(others, asker)
        return bool(here or others)

    def see(self, led: Sequence[Led], fenced: Callable[[int], int], stamp: int) -> int:
        """Take what partitions say that are led here, from the last one on, until one is behind
        `stamp`. Return how many are left; that one is the last of them.
        """
        registers, ends, left = self.registers, self.ends, len(led)
        for partition, group, leading, state in reversed(led):
            barrier = leading.barrier(fenced(group))
            at = barrier.stamp
            if at > registers.get(partition, NO_BARRIER).stamp:
                registers[partition] = barrier
            if state.roster:  # at once: with a barrier above it, a floor must be known
                self.learn(state.roster)
            if state.ends:
                for ended, end in state.ends.items():
                    self.learn_end(ended, *end)
            if at < stamp and partition not in ends:
                break
            left -= 1
        return left

    def to_ask(self) -> tuple[bool, set[int]]:
        """Return whether leaders here have to promise, and the places of others that have to, for
        those that the last look found behind.
        """
        places, ends = self.plan.places, self.ends
        asked = {places[p] for p in self._behind if p in places and p not in ends}
        return any(led.partition not in ends for led in self._behind_here), asked

    def _not_at(self, partitions: Sequence[int], asker: Asker) -> list[int]:
        """Return those of these partitions, led elsewhere, that are not where somebody waits."""
        registers, ends, heard = self.registers, self.ends, self._heard
        stamp, after = asker.stamp, asker.after  # nothing is heard before ANYTIME
        return [
            p
            for p in partitions
            if (registers.get(p, NO_BARRIER).stamp < stamp or heard.get(p, 0) <= after)
            and p not in ends
        ]
