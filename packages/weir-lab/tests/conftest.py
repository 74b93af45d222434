"""Many seeds are played beside all tests, for those that judge them.

Whichever process hands tests out, or runs all of them, has the players: one that runs only some
may end before others do. Where nobody asks for the seeds, none is played.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rigs.many_seeds import JUDGES, ManySeeds

_PLAYING: list[ManySeeds] = []


@pytest.fixture(scope="session")
def many_seeds(request: pytest.FixtureRequest) -> Path:
    """The folder in which the players write; they began when the tests were collected."""
    told = getattr(request.config, "workerinput", None)
    return _players().folder if told is None else Path(told["many_seeds"])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, where one process runs all tests."""
    if not hasattr(session.config, "workerinput"):
        _begin(item.nodeid for item in session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that will run some of the tests where the players will write."""
    node.workerinput["many_seeds"] = str(_players().folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: Iterable[str]) -> None:
    """Begin, where this process hands the tests out: no test runs before all are collected."""
    _begin(ids)


def pytest_unconfigure() -> None:
    """End with the session, whatever ended that."""
    while _PLAYING:
        _PLAYING.pop().end()


def _players() -> ManySeeds:
    if not _PLAYING:
        _PLAYING.append(ManySeeds())
    return _PLAYING[0]


def _begin(ids: Iterable[str]) -> None:
    names = {one.partition("::")[2] for one in ids}
    if asked := [judge for judge in JUDGES if judge in names]:
        _players().begin(asked)
