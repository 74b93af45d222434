"""A core in memory, and what relays are told by relays above them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weir.relay.ports import Event
from weir.relay_node.uppers import Asked, UpperRelay
from weir.testing.memory_node import Node, node


@pytest.fixture
def core() -> Iterator[Node]:
    with node() as found:
        yield found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What relays are told by relays above them, in order."""
    found: list[Event] = []
    answer_to = UpperRelay.answer_to

    async def noted(upper: UpperRelay, message: Asked) -> Event | None:
        event = await answer_to(upper, message)
        if event is not None:
            found.append(event)
        return event

    monkeypatch.setattr(UpperRelay, "answer_to", noted)
    return found
