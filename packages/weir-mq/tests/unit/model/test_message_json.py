"""What was published as an object is read back as one."""

from __future__ import annotations

import pytest

from weir.client.arguments import value_bytes
from weir.model.message import Message


@pytest.mark.parametrize("thing", [{"door": 3, "open": True}, [1, None, "x"], "text", 2.5])
def test_json_comes_back(thing: object) -> None:
    raw = value_bytes(thing) if not isinstance(thing, str) else b'"text"'
    assert Message(raw).json() == thing


def test_what_is_no_json_names_its_place() -> None:
    with pytest.raises(ValueError, match="of t/2 at 7 is no JSON"):
        Message(b"\xff", topic="t", partition=2, offset=7).json()
