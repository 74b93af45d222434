"""What is asked of the leaders of an attempt's parts, and told to them, until each has answered.

What became of an attempt is told to all its parts at once, or to one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.broker.runtime.outbox import Caller
from weir.errors import Overloaded, Refused, Unavailable
from weir.model.ids import Address, Attempt, is_acks, part_group, topic_of
from weir.order.clock import Time
from weir.protocol.client.order import (
    NO_SINK,
    Acks,
    Decide,
    PartState,
    Prepare,
    SinkBatch,
    Standing,
    Step,
)
from weir.protocol.trunk import OWN_SESSION

PartRequest = Prepare | Decide
#: What each part answered: how it is, or why that is not known.
Answers = dict[int, PartState | Refused]

#: A participant that has not answered by then is asked again.
_SILENT_MS = 2_000
_PAUSE_MS, _PAUSE_MS_MAX = 50, 800


class PartContent(NamedTuple):
    """What a part holds: a batch, or acks, or which batch of a query is published."""

    batch: bytes = b""
    acks: Acks = []  # noqa: RUF012  # nobody adds to it
    sink: SinkBatch = NO_SINK


class LocalParts(Protocol):
    """The partitions of this shard, as far as parts of scatterings are concerned."""

    @property
    def catalog(self) -> Catalog:
        """Which topics there are, and were."""

    def ask_part(self, request: PartRequest, caller: Caller) -> None:
        """Have a partition answer `caller`, now or later. Raises `Refused`."""


class RoundOwner(Protocol):
    """What goes on by the answers of a round."""

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""

    def take(self, answers: Answers) -> None:
        """Go on with what the parts of its last round answered."""


class ParticipantRound(msgspec.Struct, eq=False):
    """One question to each of some parts of an attempt: to do a `step`, or, without one, to be
    prepared with its part of the `contents`.

    It is over once all have answered, or one of them says what is `enough`, or it is `until_ms`;
    those that may answer otherwise later are asked again till then. One that may have been prepared
    is not, for what is said of it later may be too late.
    """

    #: The owner of the answers; None where they change nothing.
    owner: RoundOwner | None
    attempt: Attempt
    step: Step | None
    parts: list[int]
    until_ms: int
    enough: frozenset[Standing] = frozenset()
    #: What all parts of the scattering hold, for those that are to be prepared.
    contents: Mapping[int, PartContent] = msgspec.field(default_factory=dict)
    #: Parts that are told after these, one behind the other, each as it is with the one before it.
    later: list[int] = msgspec.field(default_factory=list)
    answers: Answers = msgspec.field(default_factory=dict)
    is_over: bool = False
    #: By part that could not answer: when to ask again, how long to wait the next time, and why.
    again: dict[int, tuple[int, int, Refused]] = msgspec.field(default_factory=dict)

    def request_for(self, part: int) -> PartRequest:
        """Return what to ask the leader of a part."""
        address = Address(0, 0, part_group(part))
        if self.step is None:
            return Prepare(address, *self.attempt, tuple(self.contents), *self.contents[part])
        return Decide(address, *self.attempt, is_acks(part), self.step)

    @property
    def is_complete(self) -> bool:
        """Whether what was answered is all that is waited for, of the parts asked so far."""
        if len(self.answers) == len(self.parts):
            return True
        return any(has(self.answers, standing) for standing in self.enough)

    def note(self, part: int, answer: PartState | Refused, now_ms: int) -> None:
        """Take note of an answer."""
        if isinstance(answer, Refused) and self._is_again(answer) and now_ms < self.until_ms:
            _, pause_ms, _ = self.again.get(part, (0, _PAUSE_MS, answer))
            again_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
            self.again[part] = now_ms + pause_ms, again_ms, answer
        else:
            self.answers[part] = answer

    def _is_again(self, error: Refused) -> bool:
        return isinstance(error, Overloaded) if self.step is None else error.retryable

    def give_up(self) -> None:
        """Time is up: what was not answered is not known."""
        for part in self.parts:
            if part not in self.answers:
                silent = Unavailable("a participant of a scattering does not answer")
                self.answers[part] = self.again[part][2] if part in self.again else silent


class _Asked(NamedTuple):
    round: ParticipantRound
    part: int
    place: int
    since_ms: int


class ParticipantRounds:
    """The rounds under way on this shard. Those that are over wait in `over` for the component that
    continues them.
    """

    __slots__ = ("_asked", "_forwarder", "_number", "_parts", "_rounds", "_time", "over")

    def __init__(self, parts: LocalParts, forwarder: Forwarder, time: Time) -> None:
        """Begin with none; the `forwarder` reaches leaders on other shards."""
        self._parts = parts
        self._forwarder = forwarder
        self._time = time
        self._rounds: list[ParticipantRound] = []
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self.over: deque[ParticipantRound] = deque()

    def left(self, parts: Iterable[int]) -> list[int]:
        """Return the parts whose topics were not deleted, in order."""
        return [part for part in sorted(parts) if not self._is_gone(part)]

    def _is_gone(self, part: int) -> bool:
        return self._parts.catalog.was_deleted(topic_of(part_group(part)))

    def start(self, one: ParticipantRound) -> None:
        """Ask all parts of a round."""
        self._rounds.append(one)
        for part in tuple(one.parts):
            if not one.is_over:
                self._ask(one, part)
        self._end_if_complete(one)

    def decide(
        self, owner: RoundOwner, attempt: Attempt, parts: Collection[int], told: Collection[int],
        step: Step, until_ms: int,
    ) -> None:  # fmt: skip
        """Commit or abort an attempt where others may do the opposite: those of its parts that are
        to be `told`.

        Of several topics one may be deleted: of its part some know that it was never prepared, and
        abort; others only that it is gone, and commit. So there the parts are told in one order, by
        any coordinator, and each with the outcome of the one before it. Those of one topic are gone
        together.
        """
        now, later = self.left(told), list[int]()
        if len({topic_of(part_group(part)) for part in parts}) > 1:
            now, later = now[:1], now[1:]
        self.start(ParticipantRound(owner, attempt, step, now, until_ms, later=later))

    def answered(self, number: int, answer: PartState | Refused) -> None:
        """Take the answer to a question."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.round.is_over:
            asked.round.note(asked.part, answer, self._time.monotonic_ms())
            self._end_if_complete(asked.round)

    def trunk_closed(self, place: int) -> None:
        """The trunk to a place broke: what was asked there has no answer."""
        lost = Unavailable("a participant of a scattering is not reached")
        for number in [n for n, asked in self._asked.items() if asked.place == place]:
            self.answered(number, lost)

    def check_deadlines(self) -> None:
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
            self._end_if_complete(one)

    def _is_asked(self, one: ParticipantRound, part: int) -> bool:
        return any(asked.round is one and asked.part == part for asked in self._asked.values())

    def _ask(self, one: ParticipantRound, part: int) -> None:
        self._number += 1
        number, request = self._number, one.request_for(part)
        place, now_ms = -1, self._time.monotonic_ms()
        try:
            place = self._forwarder.routes.toward(part_group(part))
            self._asked[number] = _Asked(one, part, place, now_ms)
            if place == self._forwarder.shard:
                self._parts.ask_part(request, Caller(OWN_SESSION, 0, number))
            else:
                self._forwarder.ask_own(place, request, number)
        except Refused as error:
            self._asked[number] = _Asked(one, part, place, now_ms)
            self.answered(number, error)

    def _end_if_complete(self, one: ParticipantRound) -> None:
        if one.is_over or not one.is_complete:
            return
        if one.later and self._goes_on(one):
            one.parts.append(one.later.pop(0))
            self._ask(one, one.parts[-1])
            return
        one.is_over = True
        self._rounds.remove(one)
        self.over.append(one)

    def _goes_on(self, one: ParticipantRound) -> bool:
        """Whether the next part may be told, what the one before it came to; else that has to be
        found out first.
        """
        part = one.parts[-1]
        answer = one.answers[part]
        if isinstance(answer, Refused):
            return self._is_gone(part)
        one.step = Step.COMMIT if answer.standing == Standing.COMMITTED else Step.ABORT
        return True


def has(answers: Answers, standing: Standing) -> bool:
    """Return whether a part answered that."""
    return any(isinstance(a, PartState) and a.standing == standing for a in answers.values())
