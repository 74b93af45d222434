"""The scatterings that clients ask for, and those of others that a shard finishes (docs/adr/0024).

A client's scattering goes on attempt by attempt, until it is clear what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.scattering.participant import ParticipantReports
from weir.broker.scattering.rounds import (
    Answers,
    LocalParts,
    PartContent,
    ParticipantRound,
    ParticipantRounds,
    RoundOwner,
    has,
)
from weir.errors import (
    BatchPublished,
    NotLeader,
    Overloaded,
    Refused,
    StampTooFar,
    Unavailable,
    refusal,
)
from weir.model.ids import Attempt, is_acks, part_group
from weir.model.limits import (
    MAX_AHEAD_MS,
    RETRY_AFTER_MS,
    SCATTERINGS_MAX,
)
from weir.order.clock import HighestStamp, HybridClock, Time, stamp_at
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.client.order import (
    NO_SINK,
    Decide,
    PartState,
    Prepare,
    Scatter,
    ScatterConfirm,
    Standing,
    Step,
)
from weir.protocol.client.sinks import Publish
from weir.protocol.frame import ClientFrame

#: A client is answered within this time; what is not clear by then its participants find out.
WITHIN_MS = 10_000
_PREPARE_MS = 3_000
_DECIDE_MS = 5_000
#: What is committed is told after so long in any case: participants see to the rest.
_KNOWN_MS = 1_000
#: How far ahead of all known stamps the first attempt is stamped, and the last ones.
_LEAD_MS, _LEAD_MS_MAX = 2, 256
#: Each step of a recovery is told to the parts for so long; then it is left until it is asked anew.
_RECOVERED_WITHIN_MS = 4_000


class ScatteringContext(NamedTuple):
    """What the scatterings of a shard share."""

    rounds: ParticipantRounds
    highest: HighestStamp
    time: Time
    outbox: Outbox


class Phase(Enum):
    """What the parts of a scattering, or of what is left of one, were asked for last."""

    PREPARE = auto()
    #: How it is with parts of which that is not clear.
    ASK = auto()
    #: That one which is not prepared never will be.
    BAR = auto()
    ABORT = auto()
    COMMIT = auto()
    #: To do what others may do the opposite of, where nothing remains to be done behind it.
    DECIDE = auto()
    CLOSE = auto()


_NEVER = frozenset({Standing.NEVER})
_CLEAR = frozenset({Standing.NEVER, Standing.COMMITTED})


class Scattering:
    """Prepares all parts at one stamp, says once they all are, and lets them know."""

    __slots__ = (
        "_above",
        "_again_ms",
        "_answers",
        "_attempt",
        "_context",
        "_first",
        "_lead_ms",
        "_parts",
        "_phase",
        "_request",
        "_until_ms",
        "caller",
        "outcome",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        context: ScatteringContext,
        caller: Caller,
        request: Scatter | Publish,
        parts: Mapping[int, PartContent],
    ) -> None:
        """Coordinate a request of `caller` with these `parts`. It is not attempted again where its
        client is gone: that asks elsewhere, and attempts would end each other.
        """
        self._context = context
        #: The caller to answer, and the answer; None until it is known.
        self.caller = caller
        self.outcome: ScatterConfirm | Refused | None = None
        self._request = request
        self._parts = {part: parts[part] for part in sorted(parts)}
        #: Bytes of its batches.
        self.size = sum(len(part.batch) for part in parts.values())
        self._above = request.seen
        self._lead_ms = _LEAD_MS
        self._until_ms = context.time.monotonic_ms() + WITHIN_MS
        self._attempt = Attempt(request.producer, request.epoch, request.number, 0)
        self._phase = Phase.PREPARE
        #: Of the attempt under way.
        self._answers: Answers = {}
        #: Parts that the next attempt may be too far ahead for: the others are prepared once these
        #: are. Else a partition that was stamped hours ahead would hold back its readers, again and
        #: again, for what comes to nothing.
        #: Of a publication, first those that know whether it was published before.
        self._first = [part for part, content in self._parts.items() if content.sink != NO_SINK]
        #: When to attempt it again; 0 while one is under way.
        self._again_ms = 0

    @property
    def is_over(self) -> bool:
        """Whether it is known what became of it."""
        return self.outcome is not None

    def begin(self) -> None:
        """Make an attempt."""
        self._again_ms = 0
        is_wanted = self._context.outbox.knows(self.caller.session)
        if self._context.time.monotonic_ms() >= self._until_ms or not is_wanted:
            self._end(Unavailable("a scattering came to no end in time: send it again as it is"))
            return
        self._attempt = self._attempt._replace(stamp=self._next_stamp())
        self._lead_ms = min(2 * self._lead_ms, _LEAD_MS_MAX)
        self._answers = {}
        self._prepare_all(self._first or [*self._parts])

    def _next_stamp(self) -> int:
        # The lead is one over the clock, not over other scatterings: else many of them would run
        # away from it together.
        highest, now = self._context.highest, stamp_at(self._context.time.wall_ms())
        lead, limit = stamp_at(self._lead_ms), now + stamp_at(MAX_AHEAD_MS)
        is_near = highest.stamp <= limit
        stamp = now + lead
        # What a clock gave that was wrong by far is gone by only where a participant has to.
        if is_near or limit < self._above <= highest.stamp:
            stamp = highest.stamp = max(stamp, highest.stamp + 1)
        # What a client has seen raises nothing but its own stamp: it is for participants to check.
        above = self._above + (lead if is_near else 1) if self._above > now else 0
        return max(stamp, above, self._attempt.stamp + 1)  # no attempt is made twice

    @property
    def producer(self) -> int:
        """Who scatters."""
        return self._request.producer

    def abandon(self) -> None:
        """Make no attempt after the one under way: its client asks again."""
        self._until_ms = 0

    def check_pause(self) -> None:
        """Make the next attempt, if it is time."""
        if self._again_ms and self._context.time.monotonic_ms() >= self._again_ms:
            self.begin()

    def take(self, answers: Answers) -> None:
        """Go on with what the parts of the last round answered."""
        match self._phase:
            case Phase.PREPARE:
                self._prepared(answers)
            case Phase.ASK:
                self._answers |= answers
                self._known(answers)
            case Phase.BAR:
                self._barred(answers)
            case Phase.COMMIT:
                self._committed(answers)
            case _:
                self._aborted()

    def _prepare_all(self, parts: list[int]) -> None:
        until_ms = self._context.time.monotonic_ms() + _PREPARE_MS
        if self._until_ms:  # it was not abandoned meanwhile
            until_ms = min(until_ms, self._until_ms)
        self._phase = Phase.PREPARE
        one = ParticipantRound(self, self._attempt, None, parts, until_ms, contents=self._parts)
        self._context.rounds.start(one)

    def _prepared(self, answers: Answers) -> None:
        self._answers |= answers
        rest = [part for part in self._parts if part not in self._answers]
        if rest and not self._too_far() and not self._is_published():
            self._prepare_all(rest)
            return
        unclear = [part for part, answer in self._answers.items() if _is_unclear(answer)]
        if unclear:
            self._start(Phase.ASK, Step.ASK, unclear, self._until_ms)
        else:
            self._judge()

    def _known(self, answers: Answers) -> None:
        """Go on, if all who were asked have said how it is with their parts."""
        failed = [answer for answer in answers.values() if isinstance(answer, Refused)]
        if failed:
            self._end(Unavailable(f"the outcome of a scattering is not known yet: {failed[0]}"))
        else:
            self._judge()

    def _judge(self) -> None:
        own = [part for part, answer in self._answers.items() if self._is_own(answer)]
        counts = {part: answer for part, answer in self._answers.items() if part in own}
        if len(own) == len(self._parts) or has(counts, Standing.COMMITTED):
            self._commit()
        elif not own:
            self._aborted()
        elif has(self._answers, Standing.NEVER):
            self._abort(own)
        else:
            self._bar(own)

    def _bar(self, own: list[int]) -> None:
        """See to it that one of the parts that are not prepared never is. That they were refused
        does not say so: another shard may have chosen the same stamp for the same scattering, so
        both make one attempt, and its prepare may come to where this one's was refused.
        """
        left = self._context.rounds.left([part for part in self._parts if part not in own])
        if not left:  # their topics are gone
            self._abort(own)
            return
        until_ms = self._context.time.monotonic_ms() + _DECIDE_MS
        self._start(Phase.BAR, Step.ASK, left, until_ms, _NEVER)

    def _barred(self, answers: Answers) -> None:
        # What was refused keeps its reason.
        self._answers |= {part: one for part, one in answers.items() if self._is_own(one)}
        if has(answers, Standing.NEVER):
            self._abort([part for part, one in self._answers.items() if self._is_own(one)])
        else:
            self._known(answers)

    def _abort(self, own: list[int]) -> None:
        until_ms = self._context.time.monotonic_ms() + _DECIDE_MS
        self._phase = Phase.ABORT
        rounds, attempt = self._context.rounds, self._attempt
        rounds.decide(self, attempt, self._parts, own, Step.ABORT, until_ms)

    def _is_own(self, answer: PartState | Refused) -> bool:
        """Whether a part is prepared by this attempt, or has it decided by others already."""
        if isinstance(answer, Refused) or answer.stamp != self._attempt.stamp:
            return False
        return answer.standing in (Standing.PREPARED, Standing.COMMITTED)

    # -- it is committed ---------------------------------------------------------------------

    def _commit(self) -> None:
        # The confirmed parts are visible: the client may read, or scatter again, at once.
        now_ms = self._context.time.monotonic_ms()
        self._start(Phase.COMMIT, Step.COMMIT, self._parts, now_ms + _KNOWN_MS)

    def _committed(self, answers: Answers) -> None:
        offsets = self._offsets(Standing.PREPARED)
        if offsets is not None:
            self._end(ScatterConfirm(*offsets))
        if not any(isinstance(answer, Refused) for answer in answers.values()):
            self._close()
        if not self.is_over:  # others decided it: their leaders know the offsets by now
            self._pause()

    def _close(self) -> None:
        """Let all parts forget it; nobody waits for that."""
        parts, now_ms = list(self._parts), self._context.time.monotonic_ms()
        one = ParticipantRound(None, self._attempt, Step.CLOSE, parts, now_ms)
        self._context.rounds.start(one)

    def _offsets(self, standing: Standing) -> tuple[int, list[tuple[int, int]]] | None:
        """Return stamp and places of the batches if all are of that standing, at one stamp."""
        if len(self._answers) < len(self._parts):
            return None
        found: list[tuple[int, int]] = []
        stamps = set()
        for part, answer in self._answers.items():
            if is_acks(part):
                continue
            if isinstance(answer, Refused) or answer.standing != standing:
                return None
            found.append((part_group(part), answer.offset))
            stamps.add(answer.stamp)
        return (stamps.pop(), sorted(found)) if len(stamps) == 1 else None

    # -- it is not, or not by this attempt ---------------------------------------------------

    def _aborted(self) -> None:
        answers = self._answers
        earlier = self._offsets(Standing.COMMITTED)
        if earlier is not None:
            self._end(ScatterConfirm(*earlier, duplicate=True))
        elif has(answers, Standing.OTHER) or has(answers, Standing.COMMITTED):
            self._pause()  # an earlier attempt is about to be decided
        elif isinstance(failed := self._refusal(), StampTooFar):
            self._first = self._too_far()
            self._pause()  # a clock of theirs is behind
        elif failed is not None:
            self._end(failed)
        else:
            stamps = [a.stamp for a in answers.values() if isinstance(a, PartState)]
            self._above = max(self._above, *stamps)
            self._first = self._behind()
            if self._lead_ms < _LEAD_MS_MAX:
                self.begin()
            else:
                self._pause()

    def _too_far(self) -> list[int]:
        """Return the parts that the attempt is too far ahead for."""
        return [part for part, one in self._answers.items() if isinstance(one, StampTooFar)]

    def _is_published(self) -> bool:
        """Whether this batch of a query, or a later one, was published before."""
        return any(isinstance(one, BatchPublished) for one in self._answers.values())

    def _behind(self) -> list[int]:
        """Return the parts that are not known to have been stamped as far ahead as others were."""
        limit = stamp_at(self._context.time.wall_ms() + MAX_AHEAD_MS)
        ahead = [
            part
            for part, one in self._answers.items()
            if isinstance(one, PartState) and one.standing == Standing.TOO_LOW and one.stamp > limit
        ]
        return [part for part in self._parts if part not in ahead] if ahead else []

    def _refusal(self) -> Refused | None:
        """Return why it is refused for good; None while a batch may have been committed before: who
        was only asked for an attempt did not say.
        """
        failed = None
        for part, answer in self._answers.items():
            if isinstance(answer, Refused):
                failed = failed or answer
            elif answer.standing == Standing.NEVER and not is_acks(part):
                return None
        return failed

    def _pause(self) -> None:
        self._again_ms = self._context.time.monotonic_ms() + 2 * self._lead_ms

    def _end(self, outcome: ScatterConfirm | Refused) -> None:
        self.outcome = outcome

    def _start(
        self, phase: Phase, step: Step, parts: Iterable[int], until_ms: int,
        enough: frozenset[Standing] = frozenset(),
    ) -> None:  # fmt: skip
        self._phase = phase
        one = ParticipantRound(self, self._attempt, step, list(parts), until_ms, enough)
        self._context.rounds.start(one)


def _is_unclear(answer: PartState | Refused) -> bool:
    """Whether a part may be prepared or not."""
    return isinstance(answer, NotLeader | Unavailable)


class Recovery:
    """Asks all parts, decides by what they say, and sees to it that all of them know."""

    __slots__ = ("_left", "_parts", "_phase", "_rounds", "_time", "attempt", "is_over")

    def __init__(
        self, rounds: ParticipantRounds, attempt: Attempt, parts: tuple[int, ...], time: Time
    ) -> None:
        """Finish an attempt with these parts, as far as that can be."""
        self._rounds = rounds
        self.attempt = attempt
        self._parts = parts
        #: Those whose topics are there yet.
        self._left: list[int] = []
        self._time = time
        self._phase = Phase.ASK
        #: Whether it was finished, or could not be.
        self.is_over = False

    def begin(self, is_committed: bool) -> None:
        """Ask, and from now on nothing more of it is prepared; unless it is known to be committed:
        then a participant may have forgotten it.
        """
        self.is_over = False
        self._left = self._rounds.left(self._parts)
        if is_committed:
            self._start(Phase.COMMIT, Step.COMMIT)
        else:
            self._start(Phase.ASK, Step.ASK, _CLEAR)

    def take(self, answers: Answers) -> None:
        """Go on with what the parts of the last round answered."""
        match self._phase:
            case Phase.ASK:
                self._asked(answers)
            case Phase.COMMIT if not _is_refused(answers):
                self._start(Phase.CLOSE, Step.CLOSE)
            case _:
                self.is_over = True

    def _asked(self, answers: Answers) -> None:
        if has(answers, Standing.COMMITTED):
            self._start(Phase.COMMIT, Step.COMMIT)
        elif has(answers, Standing.NEVER):
            self._decide(Step.ABORT)
        elif _is_refused(answers):
            self.is_over = True  # somebody is not reached, and may hold it or not
        elif len(self._left) < len(self._parts):
            self._decide(Step.COMMIT)  # who was told "never" by a part that is gone may abort it
        else:
            self._start(Phase.COMMIT, Step.COMMIT)

    def _decide(self, step: Step) -> None:
        self._phase = Phase.DECIDE
        until_ms = self._time.monotonic_ms() + _RECOVERED_WITHIN_MS
        self._rounds.decide(self, self.attempt, self._parts, self._left, step, until_ms)

    def _start(self, phase: Phase, step: Step, enough: frozenset[Standing] = frozenset()) -> None:
        self._phase = phase
        until_ms = self._time.monotonic_ms() + _RECOVERED_WITHIN_MS
        one = ParticipantRound(self, self.attempt, step, [*self._left], until_ms, enough)
        self._rounds.start(one)


def _is_refused(answers: Answers) -> bool:
    return any(isinstance(answer, Refused) for answer in answers.values())


class Coordinator:
    """Takes whole scatterings of clients, and attempts that are left over."""

    __slots__ = (
        "_budget",
        "_context",
        "_outbox",
        "_recovering",
        "_reports",
        "_rounds",
        "_running",
        "_time",
    )  # fmt: skip

    def __init__(
        self, parts: LocalParts, forwarder: Forwarder, reports: ParticipantReports,
        highest: HighestStamp, time: Time, outbox: Outbox, budget: Budget,
    ) -> None:  # fmt: skip
        """Begin with none. The `forwarder` reaches parts that other shards lead; of this shard's
        own `parts` the answers come by the `reports`.
        """
        self._rounds = ParticipantRounds(parts, forwarder, time)
        self._reports = reports
        self._time = time
        self._outbox = outbox
        self._budget = budget
        self._context = ScatteringContext(self._rounds, highest, time, outbox)
        self._running: list[Scattering] = []
        self._recovering: set[Attempt] = set()
        forwarder.listen(self, Prepare, Decide)

    def scatter(
        self, caller: Caller, request: Scatter | Publish, parts: Mapping[int, PartContent]
    ) -> None:
        """Coordinate a scattering; its caller is told what became of it.

        Raises `Overloaded`, and `StampTooFar` for a client that has seen too much.
        """
        HybridClock(0, self._context.highest).check_seen(self._time.wall_ms(), request.seen)
        if len(self._running) >= SCATTERINGS_MAX:
            raise Overloaded(
                f"{SCATTERINGS_MAX:,} scatterings are under way here: try again shortly",
                RETRY_AFTER_MS,
            )
        one = Scattering(self._context, caller, request, parts)
        self._budget.charge(one.size)
        for other in self._running:
            if other.producer == request.producer:
                other.abandon()
        self._running.append(one)
        one.begin()
        self._end_if_over(one)
        self.take_reports()

    def recover(self, attempt: Attempt, parts: tuple[int, ...], is_committed: bool) -> None:
        """Finish an attempt that nobody else finishes; a later request for it is not queued
        again.
        """
        if attempt not in self._recovering and len(self._recovering) < SCATTERINGS_MAX:
            self._recovering.add(attempt)
            Recovery(self._rounds, attempt, parts, self._time).begin(is_committed)

    def take_reports(self) -> None:
        """Go on with all that participants of this shard have said, and what follows from it."""
        answers, over = self._reports.answers, self._rounds.over
        while answers or over:
            if over:
                one = over.popleft()
                if one.owner is not None:
                    one.owner.take(one.answers)
                    self._end_if_over(one.owner)
            else:
                self._rounds.answered(*answers.popleft())

    def answered(self, frame: ClientFrame) -> None:
        """Take what another shard answered."""
        reply = decode_reply(frame)
        if isinstance(reply, Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            self._rounds.answered(frame.correlation, error)
        elif isinstance(reply, PartState):
            self._rounds.answered(frame.correlation, reply)
        self.take_reports()

    def trunk_closed(self, place: int) -> None:
        """The trunk to a place broke."""
        self._rounds.trunk_closed(place)
        self.take_reports()

    def check_deadlines(self) -> None:
        """Go on with what waits, and end what takes too long."""
        unfinished = self._reports.unfinished
        while unfinished:
            self.recover(*unfinished.popleft())
        self._rounds.check_deadlines()
        self.take_reports()
        for one in [*self._running]:
            one.check_pause()
            self._end_if_over(one)
        self.take_reports()

    def _end_if_over(self, one: RoundOwner) -> None:
        """Say what became of a scattering; forget that a recovery is under way."""
        if not one.is_over:
            return
        if isinstance(one, Recovery):
            self._recovering.discard(one.attempt)
        elif isinstance(one, Scattering):
            self._budget.release(one.size)
            self._running.remove(one)
            if isinstance(one.outcome, Refused):
                self._outbox.refuse(one.caller, one.outcome)
            elif one.outcome is not None:
                self._outbox.reply(one.caller, one.outcome)
