"""Seeds of shapes that other runs do not play, for what belongs to the one order.

The many seeds of `test_set_seeds.py` are read in total order. WEIR_UNORDERED_SEEDS says how many
are played in which nobody does, WEIR_SCATTER_SEEDS how many of one node where clients scatter, and
WEIR_ENDING_SEEDS how many of one node where a partition ends; of a set, a fourth of those.
WEIR_SINK_WORLDS says how many are played of one node where queries write; of a set, a fourth,
but at least one.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in, seeds_of
from weir_lab.sim.run import run_drawn, run_seed, run_seeds
from weir_lab.sim.shape import (
    CROWDED,
    ENDING,
    NODE,
    NODE_ENDING,
    NODE_SCATTERED,
    NODE_SINKS,
    SET,
    SINKS,
    UNORDERED,
)

SEEDS = int(os.environ.get("WEIR_UNORDERED_SEEDS", "1"))
SCATTER_SEEDS = int(os.environ.get("WEIR_SCATTER_SEEDS", "2"))
ENDING_SEEDS = int(os.environ.get("WEIR_ENDING_SEEDS", "2"))
SINK_SEEDS = int(os.environ.get("WEIR_SINK_WORLDS", "2"))


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_every_promise_is_kept_where_nobody_reads_in_total_order() -> None:
    broken = [one.report() for one in run_seeds(0, SEEDS, UNORDERED) if one.violations]
    assert not broken, "\n\n".join(broken[:3])


@one_in(3)
@pytest.mark.timeout(120 + 15 * SINK_SEEDS)
def test_every_promise_is_kept_where_queries_write() -> None:
    for shape, seeds in ((NODE_SINKS, SINK_SEEDS), (SINKS, max(SINK_SEEDS // 4, 1))):
        broken = [one.report() for one in run_seeds(0, seeds, shape) if one.violations]
        assert not broken, "\n\n".join(broken[:3])


@one_in(3)
@pytest.mark.timeout(120 + 5 * SCATTER_SEEDS)
def test_every_promise_is_kept_by_one_node_where_clients_scatter() -> None:
    outcomes = run_seeds(0, SCATTER_SEEDS, NODE_SCATTERED)
    broken = [outcome.report() for outcome in outcomes if outcome.violations]
    assert not broken, "\n\n".join(broken[:3])


@one_in(3)
@pytest.mark.timeout(120 + 10 * ENDING_SEEDS)
def test_every_promise_is_kept_where_a_partition_ends() -> None:
    for shape, seeds in ((NODE_ENDING, ENDING_SEEDS), (ENDING, max(ENDING_SEEDS // 4, 1))):
        broken = [one.report() for one in run_seeds(0, seeds, shape) if one.violations]
        assert not broken, "\n\n".join(broken[:3])


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    [
        # Retention looked at a partition that was joining, and the shard ended.
        0,
    ],
)
def test_one_node_whose_topic_grows_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE, ordered=(2,)))
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    seeds_of(
        1,
        # Leases ended too soon when the node came back: its stamps were ahead of the time.
        62,
        96,
        108,
    ),
)
def test_one_node_where_consumers_take_turns_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE, ordered=(1,), takers=(3,)))
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    seeds_of(
        2,
        # A client asked where a partition ends, and messages lay behind what was undecided.
        1,
        16,
        # A damaged partition that nobody else has handed out what had been aborted.
        9,
        # What it says of what was aborted: acks that were not whole had barred an attempt.
        134,
        # A scattering waited for a clock: a partition had been stamped seconds ahead of another.
        202,
        # Of what was void nobody had been told before retention took it, and a barrier went on.
        363,
        # Who looked at what had rotted asked a leader that had just begun.
        563,
        # A reader took for the end what lay before something undecided, and waited for ever.
        570,
    ),
)
def test_one_node_where_clients_scatter_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, NODE_SCATTERED)
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    seeds_of(
        1,
        # A turn goes with the connection that it came over: when a later one of its holder broke
        # as well, the checker took that for the moment from which it could be another's.
        656,
        # A producer sent a batch twice; the first was told of the end, and the second met a node
        # that was stopping: the producer was to send again what it had given up.
        1010,
    ),
)
def test_one_node_of_which_a_partition_ends_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE_ENDING, shipped=(False,)))
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    [
        # A process died while it stood still, and got the rest of a frame whose begin was lost.
        118,
    ],
)
def test_a_set_of_which_a_partition_ends_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, ENDING)
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_a_group_that_left_and_came_back_begins_with_nothing() -> None:
    """It began with the state that an older checkpoint held of it, and no start went through."""
    outcome = run_seed(6, replace(ENDING, nodes=4, stewards=3, grows=(True,)))
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_what_a_clock_ahead_prepared_is_found_out() -> None:
    """Nobody finished an attempt that was stamped 8 s ahead before that time had come."""
    outcome = run_seed(143, replace(NODE_SCATTERED, ordered=(2,)))
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.parametrize(
    "seed",
    seeds_of(
        1,
        # An hour was over in a moment, and a value in chunks with it: its client was not told.
        64,
        # A follower in doubt about an entry was never told that the others could do without it.
        4,
        # Who published again in a new epoch left out when its messages are due.
        99,
    ),
)
def test_a_set_whose_clocks_jump_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, CROWDED)
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_bounds_go_on_below_what_a_clock_that_was_ahead_asked_for() -> None:
    """The one order stood still for as long as one clock of three had been ahead."""
    outcome = run_seed(489, SET)
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.timeout(60)
def test_takers_on_a_slow_disk_have_time_for_what_is_left() -> None:
    """The cursor was leased for 40 ms, and each of two flushes of a turn took up to 25 ms."""
    outcome = run_drawn(156144456)
    assert not outcome.violations, outcome.report()
