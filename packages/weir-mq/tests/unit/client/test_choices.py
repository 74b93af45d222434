"""What is no choice, no duration or no number is refused where it is given, with its name."""

from __future__ import annotations

from typing import Any

import pytest

from weir import sync, testing
from weir.client.arguments import ConsumerMode as Mode
from weir.client.arguments import check_choice, consumer_mode, duration, whole_number
from weir.errors import BadRequest


def test_a_choice_is_one_of_its_type() -> None:
    check_choice("mode", "keyed", Mode)
    assert consumer_mode("ordered") == "ordered"
    for wrong in ("fifo", "", None, 1, ["shared"]):
        with pytest.raises(BadRequest, match=r'mode=.*: give "shared", "keyed" or "ordered"'):
            check_choice("mode", wrong, Mode)


def test_durations_and_numbers_name_their_parameter() -> None:
    assert duration("lease", "5ms") == 0.005
    with pytest.raises(ValueError, match="lease='5'"):
        duration("lease", "5")
    wrong: Any
    for wrong in (None, True, b"1s"):
        with pytest.raises(TypeError, match="lease="):
            duration("lease", wrong)
    whole_number("window", 1)
    for wrong in (0, True, "1", 1.0, None):
        with pytest.raises(BadRequest, match="window="):
            whole_number("window", wrong)
    with pytest.raises(BadRequest, match="1 to 3"):
        whole_number("window", 4, 1, 3)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("producer", {"compression": "gzip"}),
    ("producer", {"ack": "all"}),
    ("producer", {"window": 0}),
    ("producer", {"max_buffered": 0}),
    ("producer", {"batch_bytes": 0}),
    ("producer", {"linger": "5"}),
    ("reader", {"read_from": "nearest"}),
    ("reader", {"order": "global"}),
    ("reader", {"max_bytes": 0}),
    ("reader", {"start": "first"}),
    ("reader", {"value_bytes_max": -1}),
    ("consumer", {"mode": "fifo"}),
    ("consumer", {"lease": "30"}),
    ("consumer", {"ack_within": "soon"}),
    ("consumer", {"max_messages": 0}),
    ("consumer", {"max_bytes": 0}),
]


@pytest.mark.parametrize(("verb", "options"), WRONG, ids=lambda one: str(one))
def test_a_wrong_option_is_refused_by_its_name_before_anything_is_sent(
    verb: str, options: dict[str, Any]
) -> None:
    (name,) = options
    cluster = {"cluster": "c"} if verb == "consumer" else {}
    refused = pytest.raises((BadRequest, ValueError), match=f"{name}=")
    with testing.node() as node, sync.connect(node.url) as w, refused:
        getattr(w, verb)("t", **cluster, **options)
