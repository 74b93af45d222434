"""The message that people see."""

from __future__ import annotations

import pytest

from weir.model.message import Message


def test_a_message_needs_a_value_only() -> None:
    message = Message(b"open")
    assert message == (b"open", None, None, 0, {}, "", -1, -1, -1, None, 0)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Message(b"open").value = b"shut"  # type: ignore[misc]
