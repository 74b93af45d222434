"""Finding out what became of an attempt that nobody finishes, and making it known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weir.broker.scattering.decisions import has, question, settle
from weir.broker.scattering.queries import Answers, Asks, Round
from weir.errors import Refused
from weir.model.scattering import Attempt
from weir.order.clock import Time
from weir.protocol.client.scattering import Standing, Step

_WITHIN_MS = 4_000


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
        until_ms = self._time.monotonic_ms() + _WITHIN_MS
        settle(self._asks, self._attempt, self._parts, self._left, step, until_ms, self._over)

    def _over(self, answers: Answers) -> None:
        self._done(self._attempt)

    def _round(
        self,
        step: Step,
        then: Callable[[Answers], None],
        enough: Callable[[Answers], bool] = lambda answers: False,
    ) -> None:
        until_ms = self._time.monotonic_ms() + _WITHIN_MS
        make = partial(question, self._attempt, step)
        self._asks.start(Round(make, self._left, until_ms, then, enough))


def _is_clear(answers: Answers) -> bool:
    return has(answers, Standing.COMMITTED) or has(answers, Standing.NEVER)
