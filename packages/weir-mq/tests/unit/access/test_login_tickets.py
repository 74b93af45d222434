"""Tickets of logins: what they are bound to."""

from __future__ import annotations

import hmac

import pytest

from weir.access.login_tickets import TICKET_BYTES, TICKET_SECONDS, TicketIssuer, end_of

SECRET = bytes(range(32))
ANN = "user:default/ann#2"
ID = bytes(range(100, 116))
NOW = 1_800_000_000.5
ISSUER = TicketIssuer(SECRET, 0x1234)


def test_a_ticket_has_these_bytes() -> None:
    ticket = ISSUER.issue(ANN, 5, NOW, ID)
    end = int(NOW) + TICKET_SECONDS
    head = b"\x01" + end.to_bytes(8, "big") + ID
    key = hmac.digest(SECRET, b"weir login ticket key 1", "sha256")
    words = b"weir login ticket 1\0" + head
    words += (0x1234).to_bytes(8, "big") + (5).to_bytes(8, "big") + ANN.encode()
    assert ticket == head + hmac.digest(key, words, "sha256")
    assert len(ticket) == TICKET_BYTES == 57


def test_a_ticket_is_good_until_its_end() -> None:
    ticket = ISSUER.issue(ANN, 5, NOW, ID)
    end = int(NOW) + TICKET_SECONDS
    assert ISSUER.id_of(ticket, ANN, 5, NOW) == ID
    assert ISSUER.id_of(ticket, ANN, 5, end - 0.5) == ID
    assert ISSUER.id_of(ticket, ANN, 5, end) is None


@pytest.mark.parametrize(
    ("issuer", "principal", "password_set"),
    [
        (TicketIssuer(SECRET, 0x1235), ANN, 5),
        (TicketIssuer(bytes(32), 0x1234), ANN, 5),
        (ISSUER, "user:default/ann#3", 5),
        (ISSUER, ANN, 6),
        (ISSUER, "", 5),
    ],
)
def test_a_ticket_is_of_one_system_user_and_password(
    issuer: TicketIssuer, principal: str, password_set: int
) -> None:
    assert issuer.id_of(ISSUER.issue(ANN, 5, NOW, ID), principal, password_set, NOW) is None


def test_nobody_has_no_ticket() -> None:
    assert ISSUER.id_of(ISSUER.issue("", 0, NOW, ID), "", 0, NOW) is None


def test_each_byte_counts() -> None:
    ticket = ISSUER.issue(ANN, 5, NOW, ID)
    for at in range(len(ticket)):
        other = ticket[:at] + bytes([ticket[at] ^ 0x10]) + ticket[at + 1 :]
        assert ISSUER.id_of(other, ANN, 5, NOW) is None, at
    for wrong in (b"", ticket[:-1], ticket + b"\0", b"\x02" + ticket[1:]):
        assert ISSUER.id_of(wrong, ANN, 5, NOW) is None


def test_an_id_has_its_length() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ISSUER.issue(ANN, 5, NOW, bytes(15))


def test_a_ticket_says_itself_when_it_is_over() -> None:
    ticket = ISSUER.issue(ANN, 5, NOW, ID)
    assert end_of(ticket) == int(NOW) + TICKET_SECONDS
    for other in (b"", b"t1", ticket[:-1], ticket + b"x", b"\x02" + ticket[1:]):
        assert end_of(other) is None


@pytest.mark.parametrize("hour", [-3_600, 3_600])
def test_a_clock_that_is_an_hour_off_costs_no_ticket(hour: int) -> None:
    """Shards of one set give and take them, and their clocks may differ."""
    ticket = ISSUER.issue(ANN, 5, NOW + hour, ID)
    assert ISSUER.id_of(ticket, ANN, 5, NOW) == ID
    assert ISSUER.id_of(ticket, ANN, 5, NOW + TICKET_SECONDS + hour) is None
