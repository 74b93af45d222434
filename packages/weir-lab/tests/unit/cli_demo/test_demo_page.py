"""The demo over time, and its page: figures from a small made-up run."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.spark.jobs.drawing import Axis, Curve, bars, chart, heat, number
from weir_lab.demo.ledger import NEVER, Latency, Sent
from weir_lab.demo.order import Example, Orders, Sameness
from weir_lab.demo.outcome import Joined, Latencies, Outcome, Rates
from weir_lab.demo.page import page
from weir_lab.demo.recording import Recording, histories, latencies, rates
from weir_lab.demo.tasks import Counted
from weir_lab.demo.weather.cells import Cell, Cells, Delayed
from weir_lab.demo.weather.source import Source


class Tags(HTMLParser):
    """Checks that what is opened is closed, and keeps what refers to somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def recording() -> Recording:
    """Two flights from EWR, two from JFK, none from LGA; the last one never came."""
    nothing = numbers()
    sent = {
        "EWR": Sent(numbers(1_000, 2_000), numbers(3_000, 5_000), numbers(0, 1)),
        "JFK": Sent(numbers(1_500, 2_500), numbers(4_000, NEVER), numbers(0, NEVER)),
        "LGA": Sent(nothing, nothing, nothing),
    }
    received = {
        "EWR": {"numbers": numbers(1, 0, 0), "received_us": numbers(6_000, 9_000, 9_900)},
        "JFK": {"numbers": numbers(0), "received_us": numbers(7_000)},
        "LGA": {"numbers": nothing, "received_us": nothing},
    }
    return Recording.of(sent, received)


def test_every_message_is_in_one_bin_of_the_rates() -> None:
    curves = rates(recording())
    width = curves["sent"][1][0] - curves["sent"][0][0]
    counts = {name: sum(rate for _, rate in points) * width for name, points in curves.items()}
    assert {name: round(count, 1) for name, count in counts.items()} == {
        "sent": 4.0, "confirmed": 3.0, "delivered": 3.0,
    }  # fmt: skip


def test_latencies_lie_where_the_messages_were_sent() -> None:
    curves = latencies(recording())
    seen = [ms for _, ms in curves["delivery p99"] if not math.isnan(ms)]
    assert seen == [8.0, 5.5, 4.0]
    assert [ms for _, ms in curves["confirm p50"] if not math.isnan(ms)] == [2.0, 2.5, 3.0]


def test_a_planes_history_tells_what_came_the_wrong_way_round() -> None:
    planes = ["N1", "N1", "N1", None]
    told = histories(recording(), planes, [10, 20, 15, 5])
    assert [(h.plane, [place for *_, place in h.flights]) for h in told] == [("N1", [2, 1, 0])]
    assert (told[0].inverted, told[0].misplaced) == (2, 0)
    # From one airport only: nothing to tell.
    assert histories(recording(), ["N2", "N2", None, None], [1, 2, 3, 4]) == []
    # Offsets that contradict the order of departure are told.
    assert histories(recording(), planes, [20, 10, 15, 5])[0].misplaced == 1


def outcome(cells: Cells) -> Outcome:
    none = Latencies(Latency(0, 0.0, 0.0, 0.0), Latency(0, 0.0, 0.0, 0.0))
    example = Example("N<2>", [(0, 0, 1), (1, 1, 0)])
    orders = Orders(
        Sameness("flights", [2, 2, 2], True, 1, 0, example),
        Sameness("flights-apart", [2, 2, 1], False, 1, 1, None),
    )
    joined = Joined(Counted(7, 0, 0, "", 3, 2, 0, ""), cells, Source(8, 3, 2, {}))
    return Outcome([], none, none, Rates({}, 0.0, 0.0), [], 0, joined, orders, {})


def test_the_page_stands_alone() -> None:
    run = recording()
    rows = [
        {"carrier": "XX", "hour": 6, "flights": 200, "mean_delay": 1.0},
        {"carrier": "XX", "hour": 7, "flights": 200, "mean_delay": 9.0},
        {"carrier": "XX", "hour": 8, "flights": 3, "mean_delay": 99.0},
    ]
    told = histories(run, ["N<1>", "N<1>", "N<1>", None], [10, 20, 15, 5])
    windy = {
        Cell("EWR", 10, 3): Delayed(100, 100, 0, 7_700.0),
        Cell("EWR", 25, 0): Delayed(99, 99, 0, 99 * 88.0),
        Cell("JFK", None, None): Delayed(500, 500, 0, 500 * 66.0),
    }
    names = {"XX": "A & B Air Lines"}
    text = page(outcome(windy), rates(run), latencies(run), told, rows, names)
    assert parse(text).outside == []
    assert "<script" not in text
    assert "A &amp; B" in text
    assert "N&lt;1&gt;" in text
    assert "N&lt;2&gt;" in text
    assert "messages are missing" in text
    assert "99 min" not in text, "too few flights to say anything"
    assert "3-4 miles, 10-15 mph: 77 min" in text
    assert "88 min" not in text, "too few flights to say anything"
    assert "66 min" not in text, "there was no weather to say anything of"
    assert "<tr><td>flights</td><td>8</td><td>7</td></tr>" in text
    # An empty run has a page too.
    parse(page(outcome({}), {}, {}, [], [], {}))


FLOATS = st.floats(-1e9, 1e9) | st.just(math.nan)


@given(st.lists(st.tuples(st.floats(0, 1e6), FLOATS)), st.booleans())
def test_any_curve_can_be_drawn(points: list[tuple[float, float]], log: bool) -> None:
    text = chart(Axis("x"), Axis("y", log=log), [Curve("<c>", points)])
    parse(text)
    assert "nan" not in text


@given(st.lists(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=3, max_size=3)))
def test_any_table_can_be_drawn(cells: list[list[float | None]]) -> None:
    text = heat([str(n) for n in range(len(cells))], ["a", "b", "c"], cells, "min")
    parse(text)
    assert text.count("<rect") == sum(cell is not None for line in cells for cell in line)
    parse(bars(["a"], [0.0], "s"))


def test_numbers_are_written_for_people() -> None:
    values = (0, 0.042, 1.25, 99.5, 1_234, 12_345, 2_100_000)
    assert [number(v) for v in values] == ["0", "0.042", "1.25", "99.5", "1,234", "12.3k", "2.1M"]
