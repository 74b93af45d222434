"""Messages that are known to be alike are sent as the same ones by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rigs.one_rack import OneRack
from weir_toc.endpoint.events import Delivered, EndpointConfig, Left, Service
from weir_toc.endpoint.making import Alike
from weir_toc.errors import InvalidScattering
from weir_toc.member import Message, Part, alike_of, events_of

FOUR = [b"%03d" % number for number in range(4)]


def leaves(payloads: Sequence[bytes], service: Service, is_alike: bool) -> tuple[object, ...]:
    """Return what 1 sends to 2, and what it is told of that."""
    rack = OneRack(2)
    rack.send(1, service, (2, b"a window"))
    rack.run(4)
    one = rack.endpoints[1]
    one.take_events()
    apart = [[(2, payload)] for payload in payloads]
    tickets = one.send_many(rack.now, service, Alike(2, payloads) if is_alike else apart)
    events = [event for event in one.take_events() if isinstance(event, Left)]
    assert [event.ticket for event in events] == [*tickets]
    return tickets, events, one.take_packets()


@pytest.mark.parametrize("service", Service)
@pytest.mark.parametrize("payloads", [FOUR[:1], FOUR, [bytes(3_000)] * 5, FOUR * 40])
def test_they_leave_as_they_would_by_themselves(
    service: Service, payloads: Sequence[bytes]
) -> None:
    assert leaves(payloads, service, True) == leaves(payloads, service, False)


@pytest.mark.parametrize(
    ("alike", "why"),
    [
        (Alike(0, FOUR), "0 is no process"),
        (Alike(2, [bytes(EndpointConfig().part_max + 1)] * 4), "a part has 32768 at most"),
        (Alike(2, [bytes(1_000)] * 9_000), "9000 parts take"),
    ],
)
def test_none_of_them_is_sent_if_one_cannot_be(alike: Alike, why: str) -> None:
    rack = OneRack(2)
    rack.run(4)
    with pytest.raises(InvalidScattering, match=why):
        rack.endpoints[1].send_many(rack.now, Service.RELIABLE, alike)
    assert not rack.endpoints[1].describe()["buffered"]


@pytest.mark.parametrize("to", ["a name", 7])
def test_a_program_may_hand_them_over_like_any_others(to: str | int) -> None:
    found = alike_of([[(to, payload)] for payload in FOUR])
    assert found is not None
    assert (found[0], [*found[1]]) == (to, FOUR)


@pytest.mark.parametrize(
    "others",
    [
        [[(7, b"001")]],  # by itself
        [[(7, b"001")]] * 3 + [[(8, b"001")]],
        [[(7, b"001")]] * 3 + [[("7", b"001")]],
        [[(7, b"001")]] * 3 + [[(7, b"0001")]],
        [[(7, b"001")]] * 3 + [[(7, b"001"), (8, b"001")]],
        [[(7, b"001")]] * 2 + [[], [(7, b"001"), (8, b"001")]],
        [[(7, b"001")]] * 3 + [[(7, bytearray(b"001"))]],
    ],
)
def test_others_are_not_alike(others: Sequence[Sequence[Part]]) -> None:
    assert alike_of(others) is None


def test_what_comes_in_one_piece_is_given_to_a_program_as_messages() -> None:
    rows = [(70, 3, 12, b"a"), (71, 4, 5, b"b")]
    found = events_of([Delivered(Service.RELIABLE, rows)])
    assert found == [Message(70, 3, b"a"), Message(71, 4, b"b")]
    assert {*map(type, found)} == {Message}
