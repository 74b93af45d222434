"""The many seeds of sets begin with the first test of this folder, which comes before all others.

Their test is the last one. A session without that test starts nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.many_seeds import ManySeeds

_FIXTURE = "many_seeds"
_HERE = Path(__file__).parent
_JUDGES: list[pytest.Item] = []
_PLAYING: list[ManySeeds] = []


@pytest.fixture(scope="session")
def many_seeds() -> ManySeeds:
    """The players, at work since the session began, or from now on."""
    if not _PLAYING:
        _PLAYING.append(ManySeeds())
    return _PLAYING[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let this folder be first, and the test that waits for the players last."""
    _JUDGES.extend(filter(_waits_for_the_player, items))
    items.sort(key=_turn)


def pytest_runtest_setup() -> None:
    """Begin with the first test of this folder: of several workers, only one gets any."""
    if _JUDGES and not _PLAYING:
        _PLAYING.append(ManySeeds())


def pytest_unconfigure() -> None:
    """End with the session, whatever ended that."""
    while _PLAYING:
        _PLAYING.pop().end()


def _turn(item: pytest.Item) -> int:
    if _waits_for_the_player(item):
        return 2
    return 0 if item.path.is_relative_to(_HERE) else 1


def _waits_for_the_player(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())
