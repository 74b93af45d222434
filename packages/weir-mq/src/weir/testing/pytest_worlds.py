"""A fixture of pytest, `weir_world`. In conftest.py:

    pytest_plugins = "weir.testing.pytest_worlds"

and in a test:

    @pytest.mark.weir_world(seeds=20, nodes=3)
    def test_each_order_is_charged_once(weir_world):
        weir_world.run(scenario)

Each seed is a test of its own. `--weir-seeds 0:500` plays those in the place of what the marks say,
and `--weir-seeds 7` that one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from weir.testing.worlds import World

_SEEDS = 10
_OPTION = "--weir-seeds"
_MARK = "weir_world"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of seeds."""
    text = "the seeds of worlds that are played: FIRST:BEHIND, or one"
    parser.getgroup("weir").addoption(_OPTION, metavar="SEEDS", type=_seeds, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    text = f"{_MARK}(seeds={_SEEDS}, nodes=3, faults=True): which worlds a test runs in"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each seed."""
    if "weir_seed" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker(_MARK)
        seeds = mark.kwargs.get("seeds", _SEEDS) if mark is not None else _SEEDS
        chosen: Sequence[int] | None = metafunc.config.getoption(_OPTION)
        if chosen is None:
            chosen = range(seeds) if isinstance(seeds, int) else [*seeds]
        metafunc.parametrize("weir_seed", chosen)


@pytest.fixture
def weir_world(weir_seed: int, request: pytest.FixtureRequest) -> World:
    """A world of a seed, in which nothing runs yet."""
    mark = request.node.get_closest_marker(_MARK)
    options = {
        name: what for name, what in (mark.kwargs if mark else {}).items() if name != "seeds"
    }
    world = World(weir_seed, **options)
    test = request.node.nodeid.removesuffix("]").rpartition("[")[0]
    world.replay = f"pytest {_OPTION} {weir_seed} {shlex.quote(test)}"
    return world


def _seeds(text: str) -> Sequence[int]:
    first, colon, behind = text.partition(":")
    return range(int(first), int(behind) if colon else int(first) + 1)
