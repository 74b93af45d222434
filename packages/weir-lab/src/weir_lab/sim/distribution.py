"""The distribution of worlds that is played unless a shape is named: what a seed draws.

shape = drawn(7)              # a named shape, and what goes beside it
scenarios(7)                  # and the names of the scenarios that are played with it
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from weir.testing.simulator.world import SECOND
from weir_lab.sim.outcome import USERS
from weir_lab.sim.shape import SHAPES, Shape

#: How many of 100 worlds have each shape, with what is drawn beside.
DRAWN: tuple[tuple[str, int], ...] = (
    ("node", 5),
    ("node-crowd", 3),
    ("node-shipped", 32),
    ("node-scattered", 3),
    ("node-ending", 4),
    ("node-sinks", 4),
    ("set", 12),
    ("even", 19),
    ("unordered", 3),
    ("crowded", 6),
    ("ending", 4),
    ("four", 2),
    ("set-crowd", 1),
    ("sinks", 2),
)
#: Of worlds whose shape leaves it open, so many have the client as it ships.
_SHIPPED = 0.4
#: In how many worlds with the client as it ships each of these takes part, on its own.
_BESIDE: tuple[tuple[float, dict[str, Any]], ...] = (
    (0.54, {"apps": (2,)}),
    (0.64, {"parcels": (20,)}),
    (0.30, {"blocking": True}),
    (0.56, {"queries": (1,)}),
    (0.54, {"tails": (1,), "subs": (2,)}),
    (0.82, {"errands": (12,)}),
    (0.84, {"typed": (10,)}),
    (0.54, {"sunk": (8,)}),
    (0.30, {"planners": 1}),
    (0.20, {"relays": (2, 1, 3)}),
)
#: They have more to do: so faults go on for longer in a world of one node. In a set much more is
#: done in a second than in others, so that they go on for less long, and the less behind a time in
#: which clocks were wrong.
_ONE_NODE = 2 * SECOND
_SHIPPED_SET = 12 * SECOND
_SHIPPED_SET_ASTRAY = 5 * SECOND
#: Where nobody takes turns, others keep order.
_ONE_NODE_TAKERS = (3, 0, 0)
#: In how many worlds without rot devices of a fleet are replaced.
_REPLACED = 0.2
#: In how many worlds of sets one clock at a time is wrong in the beginning, and for how long.
_ASTRAY = 0.54
_ONE_ASTRAY = 8 * SECOND
#: In how many worlds each scenario is played that needs no world, beside it.
#: A world with users takes ten times as long as others do; most are played by `--scenario users`.
_SCENARIOS: tuple[tuple[float, str], ...] = (
    (1.0, "log"),
    (1.0, "tails"),
    (0.15, "killers"),
    (0.01, USERS),
)
#: Each draws other dice than a world of the same seed does.
_SHAPE_DRAWS = 0x5348415045
_BESIDE_DRAWS = 0x48414E444C45
_SCENARIO_DRAWS = 0x5343454E45


def drawn(seed: int) -> Shape:
    """Return the shape that a seed draws: how many nodes, which programs, which faults."""
    names, weights = zip(*DRAWN, strict=True)
    shape = SHAPES[Random(_SHAPE_DRAWS ^ seed).choices(names, weights)[0]]
    dice = Random(_BESIDE_DRAWS ^ seed)
    drawn: dict[str, Any] = {}
    ships = shape.shipped[seed % len(shape.shipped)]
    if shape.operations and len(shape.shipped) > 1:
        ships = dice.random() < _SHIPPED
        drawn["shipped"] = (ships,)
    if ships:
        for share, beside in _BESIDE:
            drawn |= beside if dice.random() < share else {}
        if shape.nodes == 1:
            drawn |= {"faults_until": _ONE_NODE, "takers": _ONE_NODE_TAKERS}
        else:
            drawn |= {"faults_until": _SHIPPED_SET, "at_least": 0}
    if shape.nodes > 1 and dice.random() < _ASTRAY:
        drawn["one_astray"] = _ONE_ASTRAY
        drawn |= {"faults_until": _SHIPPED_SET_ASTRAY} if ships else {}
    if dice.random() < _REPLACED:
        drawn |= {"replaced": 2, "rots": (0,)}
    return replace(shape, **drawn) if drawn else shape


def scenarios(seed: int) -> tuple[str, ...]:
    """Return the names of the scenarios that are played beside the world of a seed."""
    dice = Random(_SCENARIO_DRAWS ^ seed)
    return tuple(name for share, name in _SCENARIOS if dice.random() < share)
