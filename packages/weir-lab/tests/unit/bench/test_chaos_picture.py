"""What a person sees of a chaos run."""

from __future__ import annotations

import msgspec

from weir_lab.bench.faults.chaos.picture import drawn, heading, line, summary
from weir_lab.bench.faults.chaos.rounds import COLUMNS, Result, Round

ROUND = Round(
    number=1, struck=2, led=2, leads=3, gap_ms=133.4, seconds=4.0, slot_ms=60.0, before=3,
    slots=[60, 60, 60, 30, 0, 0, 200, 60], reader_lag_ms=12.0,
)  # fmt: skip


def result(**wrong: int) -> Result:
    """Return a result of one round in which this is wrong."""
    counts = dict.fromkeys(("lost", "repeated", "reordered", "misplaced", "strange", "stale"), 0)
    return Result(
        fault="kill-leader", rounds=1, rto_median_ms=133.4, rto_max_ms=133.4,
        reader_lag_max_ms=12.0,
        **counts | wrong,
        sent=1_000, confirmed=1_000, read=1_000, read_live=1_000, seconds=9.0, each=[ROUND],
    )  # fmt: skip


def test_a_strike_is_drawn_with_the_silence_behind_it() -> None:
    assert drawn(ROUND, 1_000) == "▅▅▅✗▂··█▅"


def test_a_round_is_one_line() -> None:
    assert line(ROUND, 1_000) == (
        f"   1  node 2  leads 2→3  {'▅▅▅✗▂··█▅'.ljust(COLUMNS + 1)}     133 ms  read 12 ms later"
    )


def test_a_round_whose_columns_are_wider_says_so() -> None:
    wider = msgspec.structs.replace(ROUND, wider=2, slot_ms=120.0)
    assert drawn(wider, 500) == drawn(ROUND, 1_000)
    assert line(wider, 500) == f"{line(ROUND, 1_000)}  120 ms a column"


def test_the_heading_says_what_a_column_is() -> None:
    assert heading("kill-leader", 3, 1_000, 60.0)[1].startswith(
        "confirms around each strike, 60 ms"
    )


def test_the_summary_ends_with_the_verdict() -> None:
    assert summary(result())[-1].startswith("Every confirmed message is there once")
    assert "lost 0, repeated 0" in summary(result())[-2]
    assert result().clean
    for wrong in ("lost", "repeated", "reordered", "misplaced", "strange", "stale"):
        found = result(**{wrong: 1})
        assert not found.clean
        assert f"{wrong} 1" in summary(found)[-2]
        assert summary(found)[-1].startswith("THIS MUST NOT HAPPEN")


def test_the_summary_says_what_else_was_done() -> None:
    done = {"certificates": 9, "wrapping_keys": 1}
    lines = summary(msgspec.structs.replace(result(), longest_gap_ms=87.2, done=done))
    assert "without a kill before: 87 ms at most; certificates 9, wrapping keys 1" in lines
    assert not any("without a kill" in one for one in summary(result()))
