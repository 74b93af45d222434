"""What an aggregator with many idle links costs, on one that runs."""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main
from weir_lab.bench.toc.limits.ports import PortSettings, measure_ports
from weir_lab.bench.toc.limits.xdp_ports import measure_xdp_ports
from weir_lab.bench.toc.tree import missing_for
from weir_toc.places import Place


def test_beacons_come_by_all_links_and_go_out_by_all() -> None:
    found = measure_ports(PortSettings(ports=3, seconds=1.0, interval_ms=100.0))
    assert found.ports == 3
    # Ten intervals of each: a busy machine may be late, and links begin with the run.
    assert found.beacons_in_per_s > 10
    assert found.beacons_out_per_s > 10
    assert 0 < found.cores < 1
    assert found.rss_mb > 5
    assert not found.fenced


@pytest.mark.skipif(bool(missing_for(Place.XDP)), reason=missing_for(Place.XDP))
def test_a_switch_in_the_kernel_is_measured_with_its_thread() -> None:
    found = measure_xdp_ports(PortSettings(ports=3, seconds=1.0, interval_ms=50.0))
    assert found.ports == 3
    assert found.beacons_in_per_s > 10
    assert found.beacons_out_per_s > 10
    assert 0 < found.process_cores < 1
    assert 0 < found.kernel_cores < 1
    assert abs(found.cores - found.process_cores - found.kernel_cores) < 0.0002
    assert found.rss_mb > 5
    assert not found.fenced


def test_what_is_no_place_or_has_too_many_links_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "toc", "ports", "--place", "switch"]) == 2
    assert "host or xdp" in capsys.readouterr().err
    assert main(["bench", "toc", "ports", "--place", "xdp", "--links", "65"]) == 2
    assert "at most 64" in capsys.readouterr().err


def test_what_cannot_be_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "toc", "ports", "--links", "0"]) == 2
    assert "ports" in capsys.readouterr().err


def test_a_link_that_was_fenced_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weir_lab.bench.toc.limits.ports import PortResult

    result = PortResult(32, 0.4, 32_000, 3, 32, 26.0)
    monkeypatch.setattr("weir_lab.bench.toc.limits.ports.measure_ports", lambda _: result)
    assert main(["bench", "toc", "ports", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fenced"] == 32
