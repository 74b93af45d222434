"""The ledgers must find every fault that is planted between an airport and the crew."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_lab.demo.ledger import (
    Account,
    Received,
    Sent,
    compare,
    digest,
    first_receipts,
    latency,
)

COUNT = 10


@dataclass
class Run:
    """What happens to ten messages; a test changes what it wants to be found."""

    values: list[bytes] = field(default_factory=lambda: [b"flight %d" % n for n in range(COUNT)])
    offsets: list[int] = field(default_factory=lambda: list(range(COUNT)))
    #: (number, offset, value) by delivery.
    deliveries: list[tuple[int, int, bytes]] = field(default_factory=list)
    confirmed: int = COUNT

    def __post_init__(self) -> None:
        self.deliveries = [(n, n, value) for n, value in enumerate(self.values)]

    def account(self) -> Account:
        sent, received = Sent.blank(COUNT), Received()
        sent.send(0, self.values, now_us=1_000)
        sent.confirm(0, self.offsets[: self.confirmed], now_us=2_000)
        for number, offset, value in self.deliveries:
            received.receive(offset, [number], [value], now_us=3_000)
        # As the processes hand them over.
        return compare("EWR", Sent.read(sent.columns()), received.columns())


def test_a_run_without_faults_is_clean() -> None:
    account = Run().account()
    assert account == Account("EWR", COUNT, COUNT, COUNT, COUNT, 0, 0, 0, 0, 0, True)
    assert account.clean


def test_a_lost_message_is_found() -> None:
    run = Run()
    del run.deliveries[4]
    account = run.account()
    assert (account.lost, account.delivered, account.clean) == (1, COUNT - 1, False)


def test_a_repeated_message_is_found_and_hides_no_lost_one() -> None:
    run = Run()
    run.deliveries[4] = run.deliveries[5]
    account = run.account()
    assert (account.received, account.lost, account.repeated) == (COUNT, 1, 1)
    assert not account.clean


def test_an_unconfirmed_message_is_found() -> None:
    account = Run(confirmed=COUNT - 1).account()
    assert account.confirmed == COUNT - 1
    assert not account.clean


@pytest.mark.parametrize("number", [-1, COUNT])
def test_a_message_that_nobody_sent_is_found(number: int) -> None:
    run = Run()
    run.deliveries.append((number, COUNT, b"stranger"))
    account = run.account()
    assert account.strange == 1
    assert not account.clean


def test_a_message_that_came_from_another_offset_is_found() -> None:
    run = Run()
    run.offsets[9] = 12
    account = run.account()
    assert account.misplaced == 1
    assert not account.clean


def test_messages_that_changed_places_are_found() -> None:
    run = Run()
    run.offsets[3], run.offsets[4] = 4, 3
    run.deliveries[3], run.deliveries[4] = (3, 4, run.values[3]), (4, 3, run.values[4])
    account = run.account()
    assert (account.out_of_order, account.misplaced) == (1, 0)
    assert not account.clean


def test_the_order_of_grants_is_no_disorder() -> None:
    run = Run()
    run.deliveries.reverse()
    assert run.account().clean


def test_a_changed_byte_is_found() -> None:
    run = Run()
    run.deliveries[7] = (7, 7, b"flight 8")
    account = run.account()
    assert not account.intact
    assert not account.clean


def test_an_airport_without_flights_is_clean() -> None:
    account = compare("EWR", Sent.read(Sent.blank(0).columns()), Received().columns())
    assert account.sent == 0
    assert account.clean


@given(st.lists(st.binary(max_size=20)), st.randoms())
def test_the_digest_does_not_know_order(values: list[bytes], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = values.copy()
    random.shuffle(shuffled)
    assert digest(shuffled) == digest(values)
    assert digest([*values, b"one more"]) != digest(values)


@given(st.lists(st.binary(max_size=8), max_size=50))
def test_a_ledger_survives_being_written(values: list[bytes]) -> None:
    sent = Sent.blank(len(values))
    sent.send(0, values, now_us=5)
    again = Sent.read(sent.columns())
    assert again.digest == sent.digest
    assert np.array_equal(again.sent_us, sent.sent_us)


def test_latency_counts_only_what_has_happened() -> None:
    begun = [np.array([0, 0, -1]), np.array([1_000])]
    ended = [np.array([1_000, -1, 5]), np.array([4_000])]
    measured = latency(begun, ended)
    assert (measured.count, measured.p50_ms, measured.max_ms) == (2, 2.0, 3.0)
    assert latency([np.array([-1])], [np.array([-1])]).count == 0


def test_of_two_deliveries_the_first_is_measured() -> None:
    received = Received()
    received.receive(0, [0, 2], [b"", b""], now_us=50)
    received.receive(0, [0], [b""], now_us=40)
    assert first_receipts(received.columns(), 3).tolist() == [40, -1, 50]
