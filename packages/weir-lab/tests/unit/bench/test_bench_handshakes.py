"""`weir bench handshakes` and `timeliness --tls` measure what they say, on nodes with TLS."""

from __future__ import annotations

import json

import pytest

from rigs.drawn_mutants import one_in
from weir.cli.main import main
from weir_lab.bench.handshakes import Settings, measure
from weir_lab.bench.sides.certified import certified_nodes
from weir_lab.bench.timeliness import CpuSeconds, Result, median_run


def test_handshakes_and_memory_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_lab.bench.handshakes._WARM", 10)
    seen: list[int] = []
    result = measure(Settings(handshakes=100, mutual=True, idle=50), seen.append)
    assert seen == [*range(1, 101)]
    assert (result.handshakes, result.mutual) == (100, True)
    assert 0 < result.check_us < 1_000
    assert 0 < result.sign_us < 1_000
    assert 0 < result.tls_per_core_s < result.per_core_s
    assert result.tls_per_core_s < result.plain_per_core_s
    assert result.tls_bytes > 1_000


@pytest.mark.parametrize("change", [{"handshakes": 0}, {"idle": 1}])
def test_what_cannot_be_measured_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        measure(Settings(**change), print)


@one_in(3)
def test_timeliness_by_tls_and_closed_is_compared_with_plain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["bench", "timeliness", "--messages", "20000", "--tls", "--closed", "--json"]
    assert main([*words, "--turns", "0"]) == 2
    assert "turns" in capsys.readouterr().err
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    plain, by_tls, closed = found["runs"]
    assert (plain["tls_ratio"], plain["closed_ratio"]) == (None, None)
    assert (by_tls["tls"], closed["closed"]) == (True, True)
    for run, ratio in ((by_tls, "tls_ratio"), (closed, "closed_ratio")):
        assert run[ratio] == pytest.approx(run["messages_per_s"] / plain["messages_per_s"])


def test_of_several_turns_the_median_run_is_shown_unless_one_lost_something() -> None:
    def run(rate: float, ratio: float | None = None, lost: int = 0) -> Result:
        used = CpuSeconds(None, 0.0, 0.0)
        return Result(
            1, 10, 100, 1.0, rate, lost, 0, 0, 0, 10, 0, 1, used, 1.0, None, closed_ratio=ratio
        )  # fmt: skip

    plain = [run(rate) for rate in (5.0, 1.0, 3.0, 2.0)]
    assert median_run(plain).messages_per_s == 2.0
    closed = [run(9.0, 0.9), run(1.0, 1.1), run(5.0, 1.0)]
    assert median_run(closed).closed_ratio == 1.0
    assert median_run([*closed, run(9.0, 2.0, lost=1)]).lost == 1


def test_a_set_has_a_certificate_for_each_node() -> None:
    with certified_nodes(None, replicas=2) as certified:
        assert certified.nodes.running
        assert certified.url.startswith("weirs://")
        assert certified.url.count(":") == 3
