"""Bugs that are planted by source text: where they are planted, and where that is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.client.reader import positions
from weir.client.reader.positions import Barriers
from weir_lab.sim.mutants.planting import Patch
from weir_lab.sim.mutants.source import PlantingRefused

ROOM = """
import functools
LIMIT = 3

def wrapped(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)
    return inner

class Room:
    def __init__(self):
        self._size = 1

    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, size):
        self._size = max(size, 0)

    @staticmethod
    def double(n):
        return n * 2

    @wrapped
    def least(self, n):
        return min(n, 10)

    def nested(self):
        def inside():
            return "honest"
        return inside()
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "planted_room.py").write_text(ROOM, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import planted_room  # type: ignore[import-not-found]

    yield planted_room
    del sys.modules["planted_room"]


@pytest.mark.parametrize(
    ("old", "new", "look", "honest", "planted"),
    [
        ("n * 2", "n * 3", lambda room: room.Room.double(2), 4, 6),
        ("return self._size", "return 7", lambda room: room.Room().size, 1, 7),
        ("min(n, 10)", "min(n, 5)", lambda room: room.Room().least(8), 8, 5),
        ('"honest"', '"planted"', lambda room: room.Room().nested(), "honest", "planted"),
    ],
)
def test_the_live_functions_get_the_new_code_and_then_the_old(
    room: Any, old: str, new: str, look: Any, honest: object, planted: object
) -> None:
    patch = Patch()
    patch.source("planted_room", old, new)
    assert look(room) == planted
    patch.undo()
    assert look(room) == honest


def test_a_setter_is_not_taken_for_its_getter(room: Any) -> None:
    patch = Patch()
    patch.source("planted_room", "max(size, 0)", "max(size, 5)")
    one = room.Room()
    assert one.size == 1
    one.size = 2
    assert one.size == 5


@pytest.mark.parametrize("text", ["min(n, 11)", "return", "LIMIT = 3"])
def test_what_does_not_stand_once_in_a_function_is_refused(room: Any, text: str) -> None:
    with pytest.raises(PlantingRefused, match=r"stands|in no function"):
        Patch().source("planted_room", text, "pass")


def test_a_rule_of_weir_is_taken_away_and_put_back() -> None:
    before = Barriers.now.__code__
    patch = Patch()
    patch.source(
        positions.__name__,
        "behind = await self.reached(stamp)\n        begins = {p: before[p].through if",
        "behind = before\n        begins = {p: before[p].through if",
    )
    assert Barriers.now.__code__ is not before
    patch.undo()
    assert Barriers.now.__code__ is before


@pytest.mark.parametrize(
    ("old", "new", "run", "times"),
    [
        ("n * 2", "n * 3", lambda room: room.Room.double(2), 1),
        ("n * 2", "n * 3", lambda room: room.Room().size, 0),
        ('"honest"', '"planted"', lambda room: [room.Room().nested() for _ in range(3)], 3),
        # Of what is left out, the line before it tells.
        ("        return inside()", "        return inside", lambda room: room.Room().nested(), 1),
    ],
)
def test_it_is_told_how_often_a_planted_line_is_run(
    room: Any, old: str, new: str, run: Any, times: int
) -> None:
    patch = Patch()
    assert patch.touched == -1
    patch.source("planted_room", old, new)
    assert patch.touched == 0
    run(room)
    assert patch.touched == times
    patch.undo()
    run(room)
    assert patch.touched == times
    assert "_weir_touched" not in vars(room)


def test_a_branch_that_is_not_taken_is_not_touched(tmp_path: Path) -> None:
    text = "def f(n):\n    if n:\n        try:\n            n / n\n        except ValueError:\n" + (
        "            return 2\n        return n\n    return 0\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        (tmp_path / "branching_room.py").write_text(text, encoding="utf-8")
        import branching_room  # type: ignore[import-not-found]

        for old, new, touched in (
            ("return n", "return 1", [1, 1]),
            ("except ValueError", "except TypeError", [0, 0]),
            ("if n:", "if n > 1:", [1, 2]),
        ):
            patch, found = Patch(), []
            patch.source("branching_room", old, new)
            for n in (3, 0):
                branching_room.f(n)
                found.append(patch.touched)
            patch.undo()
            assert found == touched, old
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("branching_room", None)
