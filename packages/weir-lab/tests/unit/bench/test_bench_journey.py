"""`weir bench journey` counts the calls of one request, the same each time, without timers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from weir.broker.partition.partition import Partition
from weir_lab.bench import journey
from weir_lab.bench.journey import KINDS, Journeys, Settings, figures, measure
from weir_lab.cli.bench import app
from weir_lab.proofs.catalogue import PROOFS
from weir_lab.proofs.ledger import missed
from weir_lab.proofs.run import read

FEW = Settings(samples=3, warm=2)


def test_the_counts_are_the_same_each_time() -> None:
    found = measure(FEW)
    assert measure(FEW) == found
    for one in found:
        assert one.samples == 3
        assert one.calls > one.changes > one.package_changes > 0
        assert 10 < one.files < one.calls
        assert one.client_calls == 0


def test_a_call_more_is_counted_at_the_node_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Journeys(FEW).publish()
    apply = Partition.apply

    def twice(self: Partition, *arguments: object, **named: object) -> object:
        self.group.node.role  # noqa: B018  a property of another package
        return apply(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "apply", twice)
    after = Journeys(FEW).publish()
    assert after.calls > before.calls


def test_what_does_not_rest_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journey, "_TICKS", journey.Process.handle.__code__)
    with pytest.raises(journey.WeirError, match="timers"):
        Journeys(FEW).publish()


def test_the_verb_prints_all_figures_by_name() -> None:
    done = CliRunner().invoke(app, ["journey", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(figures(measure(FEW))) <= set(told)
    assert {f"{kind}_calls" for kind in KINDS} <= set(told)
    row = PROOFS["journey"]
    found = read(row, done.stdout)
    assert None not in found.values()
    assert {goal.figure for goal in row.goals} == set(found), "each has a goal"
    assert {f"{kind}_calls" for kind in KINDS} <= set(found)
    assert len(missed(row, dict.fromkeys(found, 10_000.0))) == len(found)
