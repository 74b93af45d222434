"""What seeds draw: every shape, all that goes beside clients that ship, and scenarios."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import pytest

from weir.cli.main import main
from weir.testing.simulator.world import MS
from weir_lab.sim import run
from weir_lab.sim.distribution import DRAWN, drawn, scenarios
from weir_lab.sim.outcome import USERS, Outcome
from weir_lab.sim.run import run_drawn, run_seed
from weir_lab.sim.shape import NODE, SET, SHAPES, Shape

SEEDS = range(4_000)
#: What the clients that ship do beside, of which a promise speaks that nothing else can break.
BESIDE = ("apps", "parcels", "queries", "tails", "subs", "errands", "typed", "sunk")
#: All that a seed may set in a shape.
SET_BY_SEEDS = {
    *BESIDE, "blocking", "planners", "shipped", "one_astray", "replaced", "rots", "faults_until",
    "at_least", "takers", "relays",
}  # fmt: skip
#: At least so many of all worlds have each of them.
LEAST = 0.22


def base_of(shape: Shape) -> str:
    rest = [field.name for field in fields(Shape) if field.name not in SET_BY_SEEDS]
    for name, _ in DRAWN:
        if all(getattr(SHAPES[name], field) == getattr(shape, field) for field in rest):
            return name
    raise AssertionError(f"no shape that is drawn has all of {shape}")


def test_seeds_draw_every_shape() -> None:
    found = Counter(base_of(drawn(seed)) for seed in SEEDS)
    # Whether clients ship, and what they do, is all that makes one of another.
    alike = {"node-shipped", "node-scattered"}
    assert set(found) | alike == {name for name, _ in DRAWN} | alike


def test_what_goes_beside_is_drawn_often_enough() -> None:
    found = Counter[str]()
    for seed in SEEDS:
        shape = drawn(seed)
        if shape.shipped[seed % len(shape.shipped)]:
            found.update(name for name in BESIDE if getattr(shape, name)[0])
        found["one clock astray"] += bool(shape.one_astray)
        # At least one in ten, for a bug of these may be planted.
        found["replaced"] += 2 * bool(shape.replaced)
        found["killers"] += 2 * ("killers" in scenarios(seed))
    assert len(found) == len(BESIDE) + 3
    assert all(count >= LEAST * len(SEEDS) for count in found.values()), found


def test_users_are_drawn_in_a_world_of_a_hundred() -> None:
    count = sum(USERS in scenarios(seed) for seed in SEEDS)
    assert 0.005 * len(SEEDS) < count < 0.015 * len(SEEDS)


def test_what_goes_beside_is_drawn_independently() -> None:
    both = sum(bool(one.apps[0] and one.sunk[0]) for one in map(drawn, SEEDS))
    assert both > 0.05 * len(SEEDS)


@pytest.mark.parametrize(
    "words", [["--scenario", "none"], ["--scenario", "users", "--shape", "set"]]
)
def test_a_scenario_is_played_by_its_name_alone(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "run", "--seeds", "1", *words]) == 2
    assert "there are log, tails, killers, users, which have no shape" in capsys.readouterr().err


def test_scenarios_are_judged_beside_a_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int, shape: Shape) -> Outcome:
        said = [("Durable", f"planted in {seed}")]
        promises = frozenset({"Planted"})
        return Outcome(seed, shape, "", 1, 1, said, "feed", 2.0, 0.0, promises=promises)

    monkeypatch.setattr(run, "SCENARIOS", dict.fromkeys(run.SCENARIOS, play))
    seed = next(seed for seed in SEEDS if len(drawn(seed).shipped) == 1 and drawn(seed).nodes == 1)
    alone, found = run_seed(seed, drawn(seed)), run_drawn(seed)
    played = len(scenarios(seed))
    assert found.violations == [("Durable", f"planted in {seed}")] * played
    assert found.trace_hash == "-".join([alone.trace_hash, *["feed"] * played])
    assert found.promises == alone.promises | {"Planted"}
    assert (found.operations, found.faults) == (alone.operations, alone.faults)
    assert found.replay == f"weir sim run --seed {seed} --seeds 1"


def test_one_clock_is_wrong_before_other_faults_come() -> None:
    calm = replace(SET, one_astray=8_000 * MS, kinds=("part",), rots=(0,))
    outcome = run_seed(3, calm)
    assert "Timely" in outcome.promises
    assert not outcome.violations, outcome.report()
    assert "Timely" not in run_seed(3, replace(calm, one_astray=0)).promises


def test_a_world_with_replaced_devices_beside_others_keeps_every_promise() -> None:
    outcome = run_seed(5, replace(NODE, replaced=2, rots=(0,)))
    assert not outcome.violations, outcome.report()
