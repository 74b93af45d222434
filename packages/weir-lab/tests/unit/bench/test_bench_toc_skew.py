"""The skew run: clocks that are wrong by known amounts, what is made of readings, a short run."""

from __future__ import annotations

import json
import subprocess
import sys
from time import monotonic_ns
from typing import Any

import pytest

from weir.cli.main import main
from weir_lab.bench.toc.skew import SkewSettings, judged, offset_of
from weir_lab.bench.toc.skew_worker import WrongClock

HOUR = 3_600_000_000_000
SHIFT = 250_000_000


@pytest.mark.parametrize("drift_ppm", [-50, 0, 50])
def test_the_true_time_is_known_from_what_a_wrong_clock_shows(drift_ppm: int) -> None:
    clock = WrongClock(SHIFT, drift_ppm)
    begun = monotonic_ns()
    for now in (begun, begun + 1_234_567, begun + HOUR):
        assert abs(clock.true(clock.shown(now)) - now) <= 1
    due = SHIFT + HOUR * drift_ppm // 1_000_000
    assert abs(clock.shown(begun + HOUR) - begun - HOUR - due) < 1_000_000
    clock.step = -SHIFT
    assert abs(clock.shown(begun + HOUR) - begun - HOUR - due + SHIFT) < 1_000_000
    before = monotonic_ns()
    assert before - 1 <= clock.true(clock()) <= monotonic_ns() + 1


def test_clocks_are_spread_evenly() -> None:
    settings = SkewSettings(processes=3, offset_ms=250.0)
    assert [offset_of(number, settings) for number in range(3)] == [-SHIFT, 0, SHIFT]


def test_a_time_namespace_shifts_the_clock_that_a_process_sees() -> None:
    program = (
        "from time import monotonic_ns\n"
        "from weir_lab.bench.toc.skew_worker import enter_time_namespace\n"
        f"print(int(enter_time_namespace(-{SHIFT})), monotonic_ns())"
    )
    before = monotonic_ns()
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    is_shifted, shown = map(int, ran.stdout.split())
    assert before <= shown + SHIFT * is_shifted <= monotonic_ns()


def process(*samples: tuple[int, int | None], fenced: int = 0, failed: int = 0) -> dict[str, Any]:
    return {"samples": samples, "fenced": fenced, "failed": failed, "excluded": 0}


def test_errors_are_compared_with_the_leader_s_clock_and_with_their_bounds() -> None:
    told = [process((1_000, 3_000), (5_000, 3_000)), process((-3_000, None), fenced=1, failed=2)]
    run = judged("followed", 2_000, told, 7, ["x"])
    assert (run.readings, run.outside) == (3, 1)
    assert (run.error_p50_us, run.error_max_us) == (3, 5)
    assert (run.messages, run.violations, run.false_removals, run.examples) == (7, 1, 3, ["x"])
    told[0]["samples"] += ((5_001, 3_000),)
    assert judged("followed", 2_000, told, 7, []).outside == 2


def test_clocks_that_are_wrong_break_no_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Long intervals: processes of a test share two cores, and must not be taken for dead."""
    words = "--processes 2 --seconds 1 --interval-ms 100 --pace 30 --json"
    code = main(["bench", "toc", "skew", *words.split()])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.toc.skew/1"
    followed, jumped = found["runs"]
    assert found["violations"] == 0, [*followed["examples"], *jumped["examples"]]
    assert found["outside"] == 0
    assert code == (1 if found["false_removals"] else 0)
    for run in (followed, jumped):
        assert run["readings"] > 10
        assert run["messages"] > 20
    assert jumped["error_max_us"] > 100_000  # it is drawn back by 500 us a second


def test_clocks_that_cannot_be_compared_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--processes", "1"], ["--offset-ms", "0"], ["--drift-ppm", "101"],
                  ["--seconds", "0"]):  # fmt: skip
        assert main(["bench", "toc", "skew", *words]) == 2
        assert "Traceback" not in capsys.readouterr().err
