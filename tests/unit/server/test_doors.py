"""The lobby lets a burst in, then so many a second, in turn; descriptors are asked for."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

from weir.server import doors
from weir.server.children import environment
from weir.server.doors import Doors, Lobby, open_doors


@pytest.fixture(autouse=True)
def small_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "ACCEPT_BURST", 3)


class FakePeer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False
        self.was_cut = False

    def cut(self) -> None:
        self.was_cut = True


def peer(name: str) -> Any:
    return FakePeer(name)


def names(peers: list[Any]) -> list[str]:
    return [peer.name for peer in peers]


def test_a_burst_enters_at_once_and_the_rest_in_turn() -> None:
    lobby = Lobby(per_second=2, now=0)
    assert [lobby.may_enter(peer(name), 0) for name in "abcde"] == [True] * 3 + [False] * 2
    assert lobby.entering(0.4) == []
    assert names(lobby.entering(0.5)) == ["d"]
    assert not lobby.may_enter(peer("f"), 10), "e came first"
    assert names(lobby.entering(10)) == ["e", "f"]
    assert lobby.may_enter(peer("g"), 10)


def test_those_who_hang_up_while_they_wait_take_no_token() -> None:
    lobby = Lobby(per_second=2, now=0)
    waiting = [peer(name) for name in "abcdefgh"]
    assert sum(lobby.may_enter(one, 0) for one in waiting) == 3
    for one in waiting[3:7]:
        one.gone = True
    assert names(lobby.entering(0.5)) == ["h"], "the first who is there"
    assert [one.was_cut for one in waiting] == [False] * 3 + [True] * 4 + [False]


def test_nobody_enters_while_the_shard_is_not_there() -> None:
    lobby = Lobby(per_second=2, now=0)
    lobby.closed = True
    assert not lobby.may_enter(peer("early"), 0)
    assert lobby.entering(9) == []
    lobby.closed = False
    assert not lobby.may_enter(peer("late"), 9), "one came first"
    assert names(lobby.entering(9)) == ["early", "late"]


def test_a_quiet_hour_saves_no_more_than_a_burst() -> None:
    lobby = Lobby(per_second=1, now=0)
    assert [lobby.may_enter(peer("p"), 3_600) for _ in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    ("limits", "asked", "allowed"),
    [
        ((1_024, 1 << 20), (20_256, 1 << 20), 20_000),
        ((1_024, resource.RLIM_INFINITY), (20_256, resource.RLIM_INFINITY), 20_000),
        ((1_024, 4_096), (4_096, 4_096), 3_840),
        ((64, 64), (64, 64), 32),
        ((50_000, 50_000), None, 20_000),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 20_000),
    ],
)
def test_as_many_connections_as_the_system_gives_descriptors(
    monkeypatch: pytest.MonkeyPatch, limits: Any, asked: Any, allowed: int
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: calls.append(pair))
    assert open_doors(Doors(connections_max=20_000)).connections_max == allowed
    assert calls in ([], [asked])
    assert bool(calls) == (asked is not None)


def test_the_table_of_descriptors_has_room_for_all_before_they_come() -> None:
    """In a process of its own: a table never gets smaller."""
    script = (
        "from weir.server.doors import *\n"
        "open_doors(Doors(connections_max=3_000))\n"
        "print(open('/proc/self/status').read())"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True, check=True, text=True, env=environment(), timeout=30,
    )  # fmt: skip
    size = int(told.stdout.partition("FDSize:")[2].split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert size >= min(3_256, hard)
