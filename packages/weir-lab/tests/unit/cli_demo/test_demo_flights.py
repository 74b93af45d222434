"""The flights as the airports send them: all of them, in order, as the Spark job reads them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import msgspec
import pytest

from weir_lab.demo import flights
from weir_lab.demo.flights import ORIGINS, Flight, NoFlights, airlines, load, seal, table


class Message(Flight, frozen=True):
    n: int
    sent_us: int


def test_all_flights_are_there() -> None:
    assert Counter(table()["origin"].to_pylist()) == {
        "EWR": 120_835,
        "JFK": 111_279,
        "LGA": 104_662,
    }


def test_messages_are_flights_in_event_time_order() -> None:
    loaded = load("JFK", limit=5_000)
    messages = msgspec.json.decode(b"[%b]" % b",".join(seal(loaded.heads, 7)), type=list[Message])
    assert [message.n for message in messages] == list(range(len(loaded)))
    assert {message.sent_us for message in messages} == {7}
    assert {message.origin for message in messages} == {"JFK"}
    assert [message.carrier.encode() for message in messages] == loaded.carriers
    assert loaded.times == sorted(loaded.times)
    assert messages[0] == Message(
        "AA", "2013-01-01T05:40", 2.0, 33.0, "JFK", "MIA", 1141, "N619AA", 0, 7
    )
    # Local time in the message, UTC in the time: New York was five hours behind.
    assert datetime.fromtimestamp(loaded.times[0] / 1e6, UTC) == datetime(
        2013, 1, 1, 10, 40, tzinfo=UTC
    )


def test_a_cancelled_flight_has_no_delay() -> None:
    heads = seal(load("EWR", limit=3_000).heads, 0)
    decoded = msgspec.json.decode(b"[%b]" % b",".join(heads), type=list[Message])
    cancelled = [message for message in decoded if message.dep_delay is None]
    assert cancelled
    assert all(message.arr_delay is None for message in cancelled)


def test_a_limit_takes_the_first_flights_of_all_airports() -> None:
    parts = [load(origin, limit=1_000) for origin in ORIGINS]
    assert sum(map(len, parts)) == 1_000
    latest = max(part.times[-1] for part in parts)
    assert latest < datetime(2013, 1, 3, tzinfo=UTC).timestamp() * 1e6


def test_airlines_have_names() -> None:
    assert airlines()["B6"] == "JetBlue Airways"
    assert airlines().keys() >= set(table(10_000)["carrier"].to_pylist())


def test_without_the_data_set_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda _: None)
    with pytest.raises(NoFlights, match=r"pip install 'weir-lab'"):
        table()
