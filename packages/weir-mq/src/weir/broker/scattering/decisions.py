"""Making known what became of an attempt: to all its parts at once, or to one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from weir.broker.scattering.queries import Answers, Asks, Round
from weir.errors import Refused
from weir.model.ids import Address, topic_of
from weir.model.scattering import Attempt, is_acks, part_group
from weir.protocol.client.scattering import Decide, PartState, Standing, Step


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
