"""Descriptors are asked for, as many as there may be connections."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

from weir.host.accept_queue import ConnectionLimits
from weir.server.assembly import allow_connections
from weir.server.interpreter import environment


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
    assert allow_connections(ConnectionLimits(connections_max=20_000)).connections_max == allowed
    assert calls in ([], [asked])
    assert bool(calls) == (asked is not None)


def test_the_table_of_descriptors_has_room_for_all_before_they_come() -> None:
    """In a process of its own: a table never gets smaller."""
    script = (
        "from weir.server.assembly import *\n"
        "allow_connections(ConnectionLimits(connections_max=3_000))\n"
        "print(open('/proc/self/status').read())"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True, check=True, text=True, env=environment(), timeout=30,
    )  # fmt: skip
    size = int(told.stdout.partition("FDSize:")[2].split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert size >= min(3_256, hard)
