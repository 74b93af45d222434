"""A welcome waits for what follows, and nothing overtakes it."""

from __future__ import annotations

import pytest

from weir.broker.api.effects import Answers, Hangup, Send
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import TOGETHER_MS, Outbox


@pytest.fixture
def outbox() -> Outbox:
    """An outbox in which the welcome of peer 1 waits."""
    outbox = Outbox(Budget())
    outbox.opened_all((1, 2))
    outbox.welcome(1, b"welcome", 0)
    assert outbox.take() == []
    return outbox


def test_messages_come_behind_it(outbox: Outbox) -> None:
    outbox.send_messages(1, b"message")
    assert outbox.take() == [Send(1, (b"welcome",)), Send(1, (b"message",), 7)]


def test_a_hangup_comes_behind_it(outbox: Outbox) -> None:
    outbox.put(Hangup(2, "another"))
    outbox.put(Hangup(1, "enough"))
    assert outbox.take() == [
        Hangup(2, "another"), Send(1, (b"welcome",)), Hangup(1, "enough"),
    ]  # fmt: skip


def test_a_second_one_comes_behind_it(outbox: Outbox) -> None:
    outbox.welcome(1, b"again", 1)
    assert outbox.take() == [Send(1, (b"welcome", b"again"))]


def test_answers_come_with_it(outbox: Outbox) -> None:
    outbox.answer({1: b" and confirm", 2: b"confirm"})
    assert outbox.take() == [Answers({1: b"welcome and confirm", 2: b"confirm"})]


def test_nothing_is_kept_for_who_is_gone(outbox: Outbox) -> None:
    outbox.closed(1)
    outbox.opened(1)
    outbox.let_out(TOGETHER_MS)
    outbox.send(1, b"ping")
    assert outbox.take() == [Send(1, (b"ping",))]
