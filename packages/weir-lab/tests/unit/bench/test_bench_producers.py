"""`weir bench producers` measures what ids take, and that a checkpoint has them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from weir.broker.state.producers import ProducerTable
from weir_lab.bench.producers import Settings, measure
from weir_lab.cli.bench import app


@pytest.mark.parametrize(("window", "least", "most"), [(1, 70, 90), (4, 180, 205), (8, 300, 340)])
def test_an_id_takes_as_many_bytes_as_its_window(window: int, least: int, most: int) -> None:
    result = measure(Settings(2_000, window))
    assert least < result.checkpoint_bytes_per_id < most
    assert result.stop_ms == max(result.taken_ms, result.write_ms) > 0


def test_ids_that_a_checkpoint_lacks_are_no_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerTable, "encode_narrow", lambda self: [])
    with pytest.raises(ValueError, match="not in the checkpoint"):
        measure(Settings(1_000, 1))


def test_the_verb_prints_what_it_measured() -> None:
    done = CliRunner().invoke(app, ["producers", "--ids", "1000", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {"memory_mb", "stop_ms", "partition_bytes_per_id"} <= set(told)
    done = CliRunner().invoke(app, ["producers", "--ids", "1000", "--window", "4"])
    assert "1,000 ids of window 4" in done.output
