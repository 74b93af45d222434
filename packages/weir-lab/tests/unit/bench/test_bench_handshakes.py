"""`weir bench handshakes` and `timeliness --tls` measure what they say, on nodes with TLS."""

from __future__ import annotations

import json

import pytest

from rigs.drawn_mutants import one_in
from weir.cli.main import main
from weir_lab.bench.handshakes import Settings, measure
from weir_lab.bench.sides.certified import certified_nodes


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
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    plain, by_tls, closed = found["runs"]
    assert (plain["tls_ratio"], plain["closed_ratio"]) == (None, None)
    assert (by_tls["tls"], closed["closed"]) == (True, True)
    for run, ratio in ((by_tls, "tls_ratio"), (closed, "closed_ratio")):
        assert run[ratio] == pytest.approx(run["messages_per_s"] / plain["messages_per_s"])


def test_a_set_has_a_certificate_for_each_node() -> None:
    with certified_nodes(None, replicas=2) as certified:
        assert certified.nodes.running
        assert certified.url.startswith("weirs://")
        assert certified.url.count(":") == 3
