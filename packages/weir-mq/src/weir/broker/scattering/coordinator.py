"""The scatterings that a shard coordinates, and those of others that it finishes (docs/adr/0024).

A client's scattering goes on attempt by attempt, until it is clear what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.scattering.parts import Answers, Asks, Round, Ways, has, question, settle
from weir.errors import NotLeader, Overloaded, Refused, StampTooFar, Unavailable, refusal
from weir.model.ids import Address
from weir.model.limits import MAX_AHEAD_MS, RETRY_AFTER_MS, SCATTERINGS_MAX
from weir.model.scattering import Attempt, is_acks, part_group
from weir.model.stamp import stamp_at
from weir.order.clock import Highest, HybridClock, Time
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.client.scattering import (
    Part,
    PartState,
    Prepare,
    Scatter,
    ScatterConfirm,
    Standing,
    Step,
)
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


class Surface(NamedTuple):
    """What the scatterings of a shard share."""

    asks: Asks
    highest: Highest
    time: Time


class Scattering:
    """Prepares all parts at one stamp, tells its client once they all are, and lets them know."""

    __slots__ = ("_above", "_again_ms", "_answers", "_attempt", "_first", "_is_told", "_is_wanted",
                 "_lead_ms", "_parts", "_request", "_shared", "_tell", "_until_ms",
                 "is_over")  # fmt: skip

    def __init__(
        self, shared: Surface, request: Scatter, parts: Mapping[int, Part],
        tell: Callable[[ScatterConfirm | Refused], None], is_wanted: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Coordinate a request with these `parts`; `tell` is called once. It is not attempted again
        where it `is_wanted` no more: its client asks elsewhere, and attempts would end each other.
        """
        self._shared = shared
        self._request = request
        self._parts = {part: parts[part] for part in sorted(parts)}
        self._tell = tell
        self._is_wanted = is_wanted
        self._above = request.seen
        self._lead_ms = _LEAD_MS
        self._until_ms = shared.time.monotonic_ms() + WITHIN_MS
        self._attempt = Attempt(request.producer, request.epoch, request.number, 0)
        #: Of the attempt under way.
        self._answers: Answers = {}
        #: Parts that the next attempt may be too far ahead for: the others are prepared once these
        #: are. Else a partition that was stamped hours ahead would hold back its readers, again and
        #: again, for what comes to nothing.
        self._first: list[int] = []
        #: When to attempt it again; 0 while one is under way.
        self._again_ms = 0
        self._is_told = False
        self.is_over = False

    def begin(self) -> None:
        """Make an attempt."""
        self._again_ms = 0
        if self._shared.time.monotonic_ms() >= self._until_ms or not self._is_wanted():
            self._end(Unavailable("a scattering came to no end in time: send it again as it is"))
            return
        self._attempt = self._attempt._replace(stamp=self._next_stamp())
        self._lead_ms = min(2 * self._lead_ms, _LEAD_MS_MAX)
        self._answers = {}
        self._prepare_all(self._first or [*self._parts])

    def _next_stamp(self) -> int:
        # The lead is one over the clock, not over other scatterings: else many of them would run
        # away from it together.
        highest, now = self._shared.highest, stamp_at(self._shared.time.wall_ms())
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

    def tick(self) -> None:
        """Go on after a pause."""
        if self._again_ms and self._shared.time.monotonic_ms() >= self._again_ms:
            self.begin()

    def _prepare(self, part: int) -> Prepare:
        content = self._parts[part]
        address = Address(0, 0, part_group(part))
        return Prepare(
            address, *self._attempt, tuple(self._parts), content.batch, content.acks
        )  # fmt: skip

    def _prepare_all(self, parts: list[int]) -> None:
        asks, now_ms = self._shared.asks, self._shared.time.monotonic_ms()
        until_ms = now_ms + _PREPARE_MS
        if self._until_ms:  # it was not abandoned meanwhile
            until_ms = min(until_ms, self._until_ms)
        asks.start(Round(self._prepare, parts, until_ms, self._prepared, once=True))

    def _prepared(self, answers: Answers) -> None:
        self._answers |= answers
        rest = [part for part in self._parts if part not in self._answers]
        if rest and not self._too_far():
            self._prepare_all(rest)
            return
        unclear = [part for part, answer in self._answers.items() if _is_unclear(answer)]
        if unclear:
            self._round(Step.ASK, unclear, self._until_ms, self._asked)
        else:
            self._judge()

    def _asked(self, answers: Answers) -> None:
        self._answers |= answers
        self._known(answers)

    def _known(self, answers: Answers) -> None:
        """Go on, if all who were asked have said how it is with their parts."""
        failed = [answer for answer in answers.values() if isinstance(answer, Refused)]
        if failed:
            self._end(Unavailable(f"not known yet what became of a scattering: {failed[0]}"))
        else:
            self._judge()

    def _judge(self) -> None:
        own = [part for part, answer in self._answers.items() if self._is_own(answer)]
        counts = {part: answer for part, answer in self._answers.items() if part in own}
        if len(own) == len(self._parts) or has(counts, Standing.COMMITTED):
            self._commit()
        elif not own:
            self._aborted({})
        elif has(self._answers, Standing.NEVER):
            self._abort(own)
        else:
            self._bar(own)

    def _bar(self, own: list[int]) -> None:
        """See to it that one of the parts that are not prepared never is. That they were refused
        does not say so: another shard may have chosen the same stamp for the same scattering, so
        both make one attempt, and its prepare may come to where this one's was refused.
        """
        left = self._shared.asks.left([part for part in self._parts if part not in own])
        if not left:  # their topics are gone
            self._abort(own)
            return
        until_ms = self._shared.time.monotonic_ms() + _DECIDE_MS
        self._round(Step.ASK, left, until_ms, self._barred, _has_never)

    def _barred(self, answers: Answers) -> None:
        # What was refused keeps its reason.
        self._answers |= {part: one for part, one in answers.items() if self._is_own(one)}
        if has(answers, Standing.NEVER):
            self._abort([part for part, one in self._answers.items() if self._is_own(one)])
        else:
            self._known(answers)

    def _abort(self, own: list[int]) -> None:
        until_ms = self._shared.time.monotonic_ms() + _DECIDE_MS
        asks, attempt, parts = self._shared.asks, self._attempt, self._parts
        settle(asks, attempt, parts, own, Step.ABORT, until_ms, self._aborted)

    def _is_own(self, answer: PartState | Refused) -> bool:
        """Whether a part is prepared by this attempt, or has it decided by others already."""
        if isinstance(answer, Refused) or answer.stamp != self._attempt.stamp:
            return False
        return answer.standing in (Standing.PREPARED, Standing.COMMITTED)

    # -- it is committed ---------------------------------------------------------------------

    def _commit(self) -> None:
        # Whoever is told finds it: he may read, or scatter again, at once.
        now_ms = self._shared.time.monotonic_ms()
        self._round(Step.COMMIT, self._parts, now_ms + _KNOWN_MS, self._committed)

    def _committed(self, answers: Answers) -> None:
        offsets = self._offsets(Standing.PREPARED)
        if offsets is not None:
            self._end(ScatterConfirm(*offsets))
        if not any(isinstance(answer, Refused) for answer in answers.values()):
            now_ms = self._shared.time.monotonic_ms()
            self._round(Step.CLOSE, self._parts, now_ms, lambda answers: None)
        if not self._is_told:  # others decided it: their leaders know the offsets by now
            self._pause()

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

    def _aborted(self, _: Answers) -> None:
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

    def _behind(self) -> list[int]:
        """Return the parts that are not known to have been stamped as far ahead as others were."""
        limit = stamp_at(self._shared.time.wall_ms() + MAX_AHEAD_MS)
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
        self._again_ms = self._shared.time.monotonic_ms() + 2 * self._lead_ms

    def _end(self, outcome: ScatterConfirm | Refused) -> None:
        self._is_told = True
        self.is_over = True
        self._tell(outcome)

    def _round(
        self,
        step: Step,
        parts: Mapping[int, Part] | list[int],
        until_ms: int,
        then: Callable[[Answers], None],
        enough: Callable[[Answers], bool] = lambda answers: False,
    ) -> None:
        make = partial(question, self._attempt, step)
        self._shared.asks.start(Round(make, list(parts), until_ms, then, enough))


def _is_unclear(answer: PartState | Refused) -> bool:
    """Whether a part may be prepared or not."""
    return isinstance(answer, NotLeader | Unavailable)


def _has_never(answers: Answers) -> bool:
    return has(answers, Standing.NEVER)


class Recovery:
    """Asks all parts, decides by what they say, and sees to it that all of them know."""

    __slots__ = ("_asks", "_attempt", "_done", "_left", "_parts", "_time")

    def __init__(
        self, asks: Asks, attempt: Attempt, parts: tuple[int, ...], time: Time,
        done: Callable[[Attempt], None],
    ) -> None:  # fmt: skip
        """Finish an attempt with these parts; `done` is told, whether it could be or not."""
        self._asks = asks
        self._attempt = attempt
        self._parts = parts
        #: Those whose topics are there yet.
        self._left: list[int] = []
        self._time = time
        self._done = done

    def begin(self, is_committed: bool) -> None:
        """Ask, and from now on nothing more of it is prepared; unless it is known to be committed:
        then who is asked may have forgotten it.
        """
        self._left = self._asks.left(self._parts)
        if is_committed:
            self._round(Step.COMMIT, self._committed)
            return
        self._round(Step.ASK, self._asked, _is_clear)

    def _asked(self, answers: Answers) -> None:
        if has(answers, Standing.COMMITTED):
            self._round(Step.COMMIT, self._committed)
        elif has(answers, Standing.NEVER):
            self._settle(Step.ABORT)
        elif any(isinstance(answer, Refused) for answer in answers.values()):
            self._over(answers)  # somebody is not reached, and may hold it or not
        elif len(self._left) < len(self._parts):
            self._settle(Step.COMMIT)  # who was told "never" by a part that is gone may abort it
        else:
            self._round(Step.COMMIT, self._committed)

    def _committed(self, answers: Answers) -> None:
        if any(isinstance(answer, Refused) for answer in answers.values()):
            self._over(answers)
        else:
            self._round(Step.CLOSE, self._over)

    def _settle(self, step: Step) -> None:
        until_ms = self._time.monotonic_ms() + _RECOVERED_WITHIN_MS
        settle(self._asks, self._attempt, self._parts, self._left, step, until_ms, self._over)

    def _over(self, answers: Answers) -> None:
        self._done(self._attempt)

    def _round(
        self,
        step: Step,
        then: Callable[[Answers], None],
        enough: Callable[[Answers], bool] = lambda answers: False,
    ) -> None:
        until_ms = self._time.monotonic_ms() + _RECOVERED_WITHIN_MS
        make = partial(question, self._attempt, step)
        self._asks.start(Round(make, self._left, until_ms, then, enough))


def _is_clear(answers: Answers) -> bool:
    return has(answers, Standing.COMMITTED) or has(answers, Standing.NEVER)


class Coordinator:
    """Takes whole scatterings of clients, and attempts that are left over."""

    __slots__ = ("_asks", "_budget", "_outbox", "_recovering", "_running", "_surface", "_time")

    def __init__(
        self, ways: Ways, highest: Highest, time: Time, outbox: Outbox, budget: Budget
    ) -> None:
        """Begin with none."""
        self._asks = Asks(ways, time)
        self._time = time
        self._outbox = outbox
        self._budget = budget
        self._surface = Surface(self._asks, highest, time)
        self._running: list[Scattering] = []
        self._recovering: set[Attempt] = set()

    def scatter(self, caller: Caller, request: Scatter, parts: Mapping[int, Part]) -> None:
        """Coordinate a scattering; its caller is told what became of it.

        Raises `Overloaded`, and `StampTooFar` for a client that has seen too much.
        """
        HybridClock(0, self._surface.highest).check_seen(self._time.wall_ms(), request.seen)
        if len(self._running) >= SCATTERINGS_MAX:
            raise Overloaded(
                f"{SCATTERINGS_MAX:,} scatterings are under way here: try again shortly",
                RETRY_AFTER_MS,
            )
        size = sum(len(part.batch) for part in parts.values())
        self._budget.charge(size)

        def tell(outcome: ScatterConfirm | Refused) -> None:
            self._budget.release(size)
            self._running.remove(one)
            if isinstance(outcome, Refused):
                self._outbox.refuse(caller, outcome)
            else:
                self._outbox.reply(caller, outcome)

        for other in self._running:
            if other.producer == request.producer:
                other.abandon()
        is_wanted = partial(self._outbox.knows, caller.session)
        one = Scattering(self._surface, request, parts, tell, is_wanted)
        self._running.append(one)
        one.begin()

    def recover(self, attempt: Attempt, parts: tuple[int, ...], is_committed: bool) -> None:
        """Finish an attempt that nobody else does; who asks again later is not put in line."""
        if attempt not in self._recovering and len(self._recovering) < SCATTERINGS_MAX:
            self._recovering.add(attempt)
            one = Recovery(self._asks, attempt, parts, self._time, self._recovering.discard)
            one.begin(is_committed)

    def answered(self, frame: ClientFrame) -> None:
        """Take what another shard answered."""
        reply = decode_reply(frame)
        if isinstance(reply, Refusal):
            self._asks.answered(frame.correlation, refusal(reply.code, reply.message, reply.detail))
        elif isinstance(reply, PartState):
            self._asks.answered(frame.correlation, reply)

    def closed(self, place: int) -> None:
        """The trunk to a place broke."""
        self._asks.closed(place)

    def tick(self) -> None:
        """Go on with what waits, and end what takes too long."""
        self._asks.tick()
        for one in [*self._running]:
            one.tick()
