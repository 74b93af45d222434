"""The chaos verbs on real processes: every round ends well, and the ledgers say so.

`make proof` runs many rounds; these show that all of it works.
"""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main


@pytest.mark.parametrize(
    "words",
    [
        ("kill-leader", "--times", "2", "--down", "0.5"),
        ("restart-all", "--times", "1"),
        ("pause-leader", "--times", "1", "--seconds", "3"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_lost_repeated_or_stale(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *words, "--calm", "0.2", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["schema"] == "weir.chaos/1"
    wrong = "lost", "repeated", "reordered", "misplaced", "strange", "stale"
    assert [told[name] for name in wrong] == [0] * len(wrong)
    assert told["rounds"] == len(told["each"]) == int(words[2])
    assert told["rto_max_ms"] == max(one["gap_ms"] for one in told["each"]) > 0
    # The producer, two devices, and what a witness may have got in.
    assert told["read"] == told["read_live"] >= told["confirmed"] > 0
    assert said.err.count("✗") == told["rounds"]
    if words[0] == "pause-leader":
        assert all(one["asked"] == one["answered"] + one["refused"] for one in told["each"])
