"""Asks leaders of parts of scatterings, as a coordinator does that the shard does not know."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from weir.broker.runtime.outbox import Caller
from weir.broker.shard import Shard
from weir.protocol.client.order import Decide, Prepare
from weir.protocol.trunk import OWN_SESSION

Tell = Callable[[Any], None]


class _Answers(deque[tuple[int, Any]]):
    """Answers on their way to a shard's coordinator, but for those that a test asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, Tell] = {}

    def append(self, item: tuple[int, Any]) -> None:
        number, answer = item
        tell = self.waiting.pop(number, None)
        if tell is None:
            super().append(item)
        else:
            tell(answer)


def listen(shard: Shard) -> _Answers:
    """Hear the answers of a shard's partitions, from now on."""
    reports = shard._partitions.context.reports
    if not isinstance(reports.answers, _Answers):
        assert not reports.answers, "the coordinator is about to take some"
        reports.answers = _Answers()
    return reports.answers


def asker_of(shard: Shard, tell: Tell) -> Caller:
    """Return who asks once: `tell` gets the answer."""
    answers = listen(shard)
    number = -1 - len(answers.waiting)
    while number in answers.waiting:
        number -= 1
    answers.waiting[number] = tell
    return Caller(OWN_SESSION, 0, number)


def ask_part(shard: Shard, request: Prepare | Decide, tell: Tell) -> None:
    """Ask a partition of a shard about a part; `tell` gets the answer, now or later."""
    shard.topics.ask_part(request, asker_of(shard, tell))
