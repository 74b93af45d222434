"""Shares of a rate: what is dealt is the limit, and never more than that is in force."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.metadata.shares import GONE_MS, Demand, SharedRate, deal, even_share

DEMANDS = st.lists(
    st.builds(Demand, st.integers(0, 1 << 60), st.booleans(), st.integers(0, 1 << 60)),
    min_size=1,
    max_size=12,
)


@given(st.integers(1_000, 1 << 60), DEMANDS)
def test_all_shares_are_the_limit_together(limit: int, demands: list[Demand]) -> None:
    shares = deal(limit, demands)
    assert sum(shares) == pytest.approx(limit)
    assert min(shares) >= limit / 10 / len(demands) * (1 - 1e-9)


@given(st.integers(1_000, 1 << 60), DEMANDS)
def test_who_wants_more_gets_no_less(limit: int, demands: list[Demand]) -> None:
    shares = deal(limit, demands)
    for one, share in zip(demands, shares, strict=True):
        for other, more in zip(demands, shares, strict=True):
            if not one.is_short and (other.is_short or other.used >= one.used):
                assert more >= share * (1 - 1e-9)


def test_a_shard_that_is_short_gets_what_others_do_not_use() -> None:
    shares = deal(1_000, [Demand(40, False, 0), Demand(500, True, 0), Demand(0, False, 0)])
    assert shares[1] > 850
    assert shares[0] >= 50
    assert shares[2] >= 33


def test_those_that_are_short_get_the_same() -> None:
    shares = deal(900, [Demand(800, True, 0), Demand(10, True, 0), Demand(5, True, 0)])
    assert shares == pytest.approx([300, 300, 300])


def test_nobody_gets_nothing() -> None:
    assert deal(10, []) == []
    assert even_share(10, 0) == 10
    assert even_share(10, 3) == 3
    assert even_share(9, 3) == 3


def test_what_is_taken_from_one_is_given_to_another_once_the_first_has_let_go() -> None:
    rate = SharedRate(1_000, 0)
    assert rate.report("a", Demand(0, False, 500), 2, 10_000) == pytest.approx(500)
    assert rate.report("b", Demand(500, True, 500), 2, 10_000) == pytest.approx(500)
    less = rate.report("a", Demand(0, False, 500), 2, 11_000)
    assert less < 100
    # Its answer may be lost: as long as it says that it holds 500, nobody else gets that.
    assert rate.report("b", Demand(500, True, 500), 2, 11_000) == pytest.approx(500)
    rate.report("a", Demand(0, False, less), 2, 12_000)
    assert rate.report("b", Demand(500, True, 500), 2, 12_000) == pytest.approx(1_000 - less)
    assert rate.used == 0, "half a unit"


def test_a_share_that_a_shard_may_not_have_heard_of_is_kept_for_it() -> None:
    rate = SharedRate(1_000, 0)
    rate.report("a", Demand(0, False, 100), 2, 10_000)
    rate.report("b", Demand(0, False, 100), 2, 10_000)
    more = rate.report("a", Demand(100, True, 100), 2, 11_000)
    assert more == pytest.approx(500)
    rate.report("b", Demand(100, True, 100), 2, 11_500)
    again = rate.report("a", Demand(0, False, 100), 2, 12_000)  # the answer is on its way
    assert again < 150
    assert rate.report("b", Demand(100, True, 100), 2, 12_000) <= 1_000 - more


def test_a_new_leader_waits_for_those_that_it_does_not_know() -> None:
    rate = SharedRate(1_000, 10_000)
    assert rate.report("a", Demand(300, True, 300), 2, 10_100) <= 300
    assert rate.report("b", Demand(0, False, 700), 2, 10_200) <= 700
    assert SharedRate(1_000, 0).report("a", Demand(300, True, 300), 2, GONE_MS) > 900
    assert SharedRate(1_000, 0).report("a", Demand(300, True, 300), 1, 10) > 900


def test_a_shard_that_is_gone_leaves_its_share_to_others() -> None:
    rate = SharedRate(1_000, 0)
    rate.report("a", Demand(500, True, 500), 2, 10_000)
    rate.report("b", Demand(500, True, 500), 2, 10_000)
    late = 10_000 + GONE_MS
    assert rate.report("b", Demand(500, True, 500), 2, late) == pytest.approx(500)
    assert rate.report("b", Demand(500, True, 500), 2, late + 1) == pytest.approx(1_000)


# -- a set whose messages are lost, late, and whose leader changes ------------------------------


@dataclass
class _World:
    """Shards that report each second over a network that loses and delays; leaders come and go."""

    seed: int
    limit: int = 1_000
    shards: int = 4
    now: int = 0
    rate: SharedRate = field(init=False)
    held: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.rate = SharedRate(self.limit, 0)
        self.held = {f"s{n}": even_share(self.limit, self.shards) for n in range(self.shards)}
        self.cut: dict[str, int] = {}

    def second(self, hungry: set[str], loss: float) -> int:
        """Let a second pass; return how much is in force at most meanwhile."""
        self.now += 1_000
        worst = 0
        if self.random.random() < loss / 10:
            self.rate = SharedRate(self.limit, self.now)
        for name in self.random.sample(sorted(self.held), self.shards):
            if self.random.random() < loss / 5:
                self.cut[name] = self.now + self.random.randrange(10_000)
            if self.cut.get(name, 0) > self.now or self.random.random() < loss:
                continue
            used = self.held[name] if name in hungry else 10
            demand = Demand(used, name in hungry, self.held[name])
            share = self.rate.report(name, demand, self.shards, self.now)
            if self.random.random() >= loss:
                self.held[name] = share
            worst = max(worst, sum(self.held.values()))
        return worst


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_the_limit_is_ever_in_force(seed: int) -> None:
    world = _World(seed)
    for step in range(200):
        hungry = {f"s{(step // 20 + n) % 4}" for n in range(1 + seed % 3)}
        assert world.second(hungry, 0.3) <= world.limit


@pytest.mark.parametrize("seed", range(5))
def test_what_one_shard_needs_comes_to_it_within_seconds(seed: int) -> None:
    world = _World(seed)
    for _ in range(5):
        world.second({"s2"}, 0.0)
    assert world.held["s2"] > 850
    for _ in range(5):
        world.second({"s0", "s1"}, 0.0)
    assert min(world.held["s0"], world.held["s1"]) > 425
