"""The dormitory experiment, small: locks, servers, handlers, and a real PostgreSQL behind them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weir_lab.bench.comparison.compare import Settings, compare
from weir_lab.bench.comparison.plot import svg_of_dormitory
from weir_lab.bench.consumers import postgres

SCRIPTS = Path(__file__).parents[4] / "scripts"
INSTALL_SECONDS = 600
LOCKS = 40


@pytest.fixture
def database() -> None:
    """A PostgreSQL that can be run."""
    if not postgres.installed():
        packages = (SCRIPTS / "postgres-packages").read_text(encoding="utf-8").split()
        done = subprocess.run(
            [SCRIPTS / "apt-install", *packages], timeout=INSTALL_SECONDS, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.mark.slow  # `make proof` measures it; what locks are promised test_dormitory.py shows
@pytest.mark.timeout(INSTALL_SECONDS + 300)
@pytest.mark.usefixtures("database")
def test_every_record_is_answered_and_has_a_row_with_weir_and_without() -> None:
    said: list[str] = []
    settings = Settings(["direct"], "dormitory", [LOCKS], deadline_s=120.0)
    comparison = compare(settings, said.append)
    (one,) = comparison.rounds
    assert comparison.clean
    assert [row.side for row in one.rows] == ["weir", "direct"]
    own, direct = (row.result for row in one.rows)
    assert own.share_recorded == direct.share_recorded == 1
    assert own.back_end_processes >= 1
    assert own.recorded_seconds >= own.seconds > 0.9  # they report within a second
    assert direct.server_cpu_s == 0  # there is no broker
    assert one.best == one.best_synced == "direct"
    assert one.times_best == pytest.approx(direct.seconds / own.seconds)
    assert "of a core" in own.bottleneck
    assert len(said) == 2

    drawing = ElementTree.fromstring(svg_of_dormitory(comparison))
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"weir", "direct", "s to the last reply", "% recorded"} <= set(texts)
