"""What is asked of the leaders of an attempt's parts, and told to them, until each has answered.

What became of an attempt is told to all its parts at once, or to one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from weir.broker.scattering.participant import Tell
from weir.errors import Overloaded, Refused, Unavailable
from weir.model.ids import Address, topic_of
from weir.model.scattering import Attempt, is_acks, part_group
from weir.order.clock import Time
from weir.protocol.client.scattering import Decide, PartState, Prepare, Standing, Step

BarrierQuery = Prepare | Decide
#: What each part answered: how it is, or why that is not known.
Answers = dict[int, PartState | Refused]

#: Whoever does not answer by then is asked again.
_SILENT_MS = 2_000
_PAUSE_MS, _PAUSE_MS_MAX = 50, 800


class Ways(NamedTuple):
    """How to reach the leaders of groups."""

    #: This shard's own place.
    here: int
    #: Returns the place that answers for a group, or raises `Refused`.
    toward: Callable[[int], int]
    #: Asks at a place, under a number that comes back with the answer, or raises `Refused`.
    ask: Callable[[int, BarrierQuery, int], None]
    #: Asks a partition of this shard, or raises `Refused`.
    local: Callable[[BarrierQuery, Tell], None]
    #: Returns whether a group's topic is known to be deleted: nobody answers for it any more.
    gone: Callable[[int], bool]


@dataclass(slots=True)
class Round:
    """One question to each of some parts. `then` gets the answers once all are there, or `enough`
    of them, or it is `until_ms`; those that may be another later are asked for again till then.
    With `once` none is that may have been taken: what is said of it later may be too late.
    """

    make: Callable[[int], BarrierQuery]
    parts: Collection[int]
    until_ms: int
    then: Callable[[Answers], None]
    enough: Callable[[Answers], bool] = lambda answers: False
    once: bool = False
    answers: Answers = field(default_factory=dict)
    is_over: bool = False
    #: By part that could not answer: when to ask again, how long to wait the next time, and why.
    again: dict[int, tuple[int, int, Refused]] = field(default_factory=dict)

    def take(self, part: int, answer: PartState | Refused, now_ms: int) -> None:
        """Take note of an answer."""
        if isinstance(answer, Refused) and self._is_again(answer) and now_ms < self.until_ms:
            _, pause_ms, _ = self.again.get(part, (0, _PAUSE_MS, answer))
            again_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
            self.again[part] = now_ms + pause_ms, again_ms, answer
        else:
            self.answers[part] = answer

    def _is_again(self, error: Refused) -> bool:
        return isinstance(error, Overloaded) if self.once else error.retryable

    def give_up(self) -> None:
        """Time is up: what was not answered is not known."""
        for part in self.parts:
            if part not in self.answers:
                silent = Unavailable("a participant of a scattering does not answer")
                self.answers[part] = self.again[part][2] if part in self.again else silent


class _Asked(NamedTuple):
    round: Round
    part: int
    place: int
    since_ms: int


class Asks:
    """The rounds under way on this shard."""

    __slots__ = ("_asked", "_number", "_rounds", "_time", "_ways")

    def __init__(self, ways: Ways, time: Time) -> None:
        """Begin with none."""
        self._ways = ways
        self._time = time
        self._rounds: list[Round] = []
        self._asked: dict[int, _Asked] = {}
        self._number = 0

    def left(self, parts: Iterable[int]) -> list[int]:
        """Return the parts whose topics were not deleted, in order."""
        return [part for part in sorted(parts) if not self._ways.gone(part_group(part))]

    def start(self, one: Round) -> None:
        """Ask all parts of a round."""
        self._rounds.append(one)
        for part in one.parts:
            if not one.is_over:
                self._ask(one, part)
        self._look(one)

    def answered(self, number: int, answer: PartState | Refused) -> None:
        """Take what came back from another shard."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.round.is_over:
            asked.round.take(asked.part, answer, self._time.monotonic_ms())
            self._look(asked.round)

    def closed(self, place: int) -> None:
        """The trunk to a place broke: what was asked there has no answer."""
        lost = Unavailable("a participant of a scattering is not reached")
        for number in [n for n, asked in self._asked.items() if asked.place == place]:
            self.answered(number, lost)

    def tick(self) -> None:
        """Ask again; end what takes too long."""
        if not (self._asked or self._rounds):
            return
        now_ms = self._time.monotonic_ms()
        silent = Unavailable("a participant of a scattering is silent")
        late = [n for n, asked in self._asked.items() if now_ms - asked.since_ms >= _SILENT_MS]
        for number in late:
            self.answered(number, silent)
        for one in [*self._rounds]:
            if not one.is_over and now_ms >= one.until_ms:
                one.give_up()
            for part in [part for part, (at_ms, _, _) in one.again.items() if now_ms >= at_ms]:
                if not one.is_over and part not in one.answers and not self._is_asked(one, part):
                    self._ask(one, part)
            self._look(one)

    def _is_asked(self, one: Round, part: int) -> bool:
        return any(asked.round is one and asked.part == part for asked in self._asked.values())

    def _ask(self, one: Round, part: int) -> None:
        self._number += 1
        number, question = self._number, one.make(part)
        place, now_ms = -1, self._time.monotonic_ms()
        try:
            place = self._ways.toward(part_group(part))
            self._asked[number] = _Asked(one, part, place, now_ms)
            if place == self._ways.here:
                self._ways.local(question, partial(self.answered, number))
            else:
                self._ways.ask(place, question, number)
        except Refused as error:
            self._asked[number] = _Asked(one, part, place, now_ms)
            self.answered(number, error)

    def _look(self, one: Round) -> None:
        if one.is_over or not (len(one.answers) == len(one.parts) or one.enough(one.answers)):
            return
        one.is_over = True
        self._rounds.remove(one)
        one.then(one.answers)


def question(attempt: Attempt, step: Step, part: int) -> Decide:
    """Return what asks a part's leader to do a step."""
    address = Address(0, 0, part_group(part))
    return Decide(address, *attempt, is_acks(part), step)


def has(answers: Answers, standing: Standing) -> bool:
    """Return whether a part answered that."""
    return any(isinstance(a, PartState) and a.standing == standing for a in answers.values())


def settle(
    asks: Asks, attempt: Attempt, parts: Collection[int], told: Collection[int], step: Step,
    until_ms: int, then: Callable[[Answers], None],
) -> None:  # fmt: skip
    """Commit or abort an attempt where others may do the opposite: those of its parts that are to
    be `told`. `then` gets what they answered.

    Of several topics one may be deleted: of its part some know that it was never prepared, and
    abort; others only that it is gone, and commit. So there the parts are told in one order,
    whoever tells them, and each as it is with the one before it. Those of one topic are gone
    together.
    """
    left = asks.left(told)
    if len({topic_of(part_group(part)) for part in parts}) > 1:
        _InTurn(asks, attempt, left, step, until_ms, then).go_on({})
    else:
        asks.start(Round(partial(question, attempt, step), left, until_ms, then))


class _InTurn:
    """Tells one part after the other."""

    __slots__ = ("_answers", "_asks", "_attempt", "_step", "_then", "_todo", "_until_ms")

    def __init__(
        self, asks: Asks, attempt: Attempt, parts: list[int], step: Step, until_ms: int,
        then: Callable[[Answers], None],
    ) -> None:  # fmt: skip
        self._asks = asks
        self._attempt = attempt
        self._todo = parts
        self._step = step
        self._until_ms = until_ms
        self._then = then
        self._answers: Answers = {}

    def go_on(self, answers: Answers) -> None:
        """Take the answer of the last part, and tell the next one."""
        self._answers |= answers
        for part, answer in answers.items():
            if isinstance(answer, Refused):
                if self._asks.left([part]):
                    self._then(self._answers)  # what is behind it waits for it
                    return
            else:
                committed = answer.standing == Standing.COMMITTED
                self._step = Step.COMMIT if committed else Step.ABORT
        if not self._todo:
            self._then(self._answers)
            return
        make = partial(question, self._attempt, self._step)
        self._asks.start(Round(make, [self._todo.pop(0)], self._until_ms, self.go_on))
