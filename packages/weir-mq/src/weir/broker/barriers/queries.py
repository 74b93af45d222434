"""What this shard asks others that lead partitions of a topic: one question each at a time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from weir.broker.barriers.waiters import ANYTIME, Asker, Scope
from weir.broker.forwarding.forwarder import Passing
from weir.errors import Refused
from weir.order.clock import Time
from weir.protocol.client.barriers import AskBarriers

#: How long others wait at most before they tell what they know: who leads may change meanwhile.
_WAIT_MS_MAX = 1_000
#: An answer that has not come so long after it was due is lost.
_LATE_MS = 1_000


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of the shard at `place`, until monotonic time `until_ms` at most."""

    topic: int
    scope: Scope
    place: int
    number: int
    stamp: int
    until_ms: int

    @property
    def key(self) -> tuple[int, Scope, int]:
        """Only one of these is under way."""
        return self.topic, self.scope, self.place


class Questions:
    """Asks the shards at other places how far topics' partitions are that they lead."""

    __slots__ = ("_count", "_numbered", "_passing", "_time", "_under_way")

    def __init__(self, passing: Passing, time: Time) -> None:
        """Ask nobody yet."""
        self._passing = passing
        self._time = time
        self._count = 0
        self._under_way: dict[tuple[int, Scope, int], Question] = {}
        self._numbered: dict[int, Question] = {}

    @property
    def newest(self) -> int:
        """The number of the last question."""
        return self._count

    def ask(self, asker: Asker, place: int) -> None:
        """Ask a place for what somebody waits for, unless a question is under way there that will
        do, and is answered no later.
        """
        topic, scope, stamp = asker.topic, asker.scope, asker.stamp
        asked = self._under_way.get((topic, scope, place))
        if asked is not None:
            if asked.stamp <= stamp and asked.number > asker.after:
                return
            self._forget(asked)
        self._count += 1
        now = self._time.monotonic_ms()
        wait_ms = min(max(asker.deadline_ms - now, 1), _WAIT_MS_MAX)
        question = Question(topic, scope, place, self._count, stamp, now + wait_ms + _LATE_MS)
        request = AskBarriers(topic, stamp, wait_ms, asker.after != ANYTIME)
        with suppress(Refused):  # it is asked again with the next tick
            self._passing.ask_own(place, request, question.number)
            self._under_way[question.key] = self._numbered[question.number] = question

    def answered(self, number: int) -> Question | None:
        """A question is answered, or refused; return it unless nobody waits for that any more."""
        question = self._numbered.get(number)
        if question is not None:
            self._forget(question)
        return question

    def lost(self, place: int) -> None:
        """What was asked of a place has no answer any more."""
        for question in [one for one in self._numbered.values() if one.place == place]:
            self._forget(question)

    def tick(self) -> None:
        """Wait no longer for what does not come."""
        if not self._numbered:
            return
        now = self._time.monotonic_ms()
        for question in [one for one in self._numbered.values() if one.until_ms <= now]:
            self._forget(question)

    def _forget(self, question: Question) -> None:
        del self._under_way[question.key], self._numbered[question.number]
