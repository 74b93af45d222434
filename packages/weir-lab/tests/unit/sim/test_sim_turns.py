"""A simulated process takes, settles, flushes, and serves connections as a server does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.broker.shard import Shard
from weir.host.accept_queue import AcceptQueue
from weir.host.connections import ClientConnection, Connections
from weir.host.lanes import OutLane
from weir.host.logs import FlushSchedule
from weir.host.outbound_link import OutboundLink
from weir.host.shard_loop import Backlog, EventQueue
from weir.host.trunks import ServingEnd
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import NODE, UNORDERED

#: Far more worlds than it takes to see everything. Those that showed what is rare come first.
SEEDS = sorted(range(80), key=lambda seed: seed not in {1, 8, 9, 17})
LONG_SEEDS = sorted(range(20), key=lambda seed: seed not in {6, 14})

# What is called, and when that shows what: told what it returned, and what it was given.
SHOWN: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "Arrived": (Shard, "step", lambda _, *events: any(type(e) is ev.Arrived for e in events)),
    "Rested": (Shard, "step", lambda _, *events: any(type(e) is ev.Rested for e in events)),
    "LetGo": (Shard, "step", lambda _, *events: any(type(e) is ev.LetGo for e in events)),
    "several events as one": (Shard, "step", lambda _, *events: len(events) > 1),
    "settled behind a turn": (EventQueue, "follow", lambda effects: effects is None),
    "nothing to settle": (EventQueue, "follow", lambda effects: effects == []),
    "a flush inline": (FlushSchedule, "start", lambda inline, _: inline),
    "a flush beside": (FlushSchedule, "start", lambda inline, _: not inline),
    "a wait to be let in": (AcceptQueue, "may_enter", lambda enters, *_: not enters),
    "a full client": (ClientConnection, "pause_writing", lambda _: True),
    "a silent device": (ClientConnection, "hang_up", lambda _, why: "ping to stay" in why),
    "requests one by one": (Backlog, "serve_next", lambda _: True),
    "a link to a shard's own port": (OutboundLink, "_redirect", lambda *_: True),
    "a link to another node": (
        OutboundLink,
        "_refused",
        lambda _, why: "correct the address" in why,
    ),
    "a link to a node founded anew": (OutboundLink, "_refused", lambda _, why: FOUNDED_ANEW in why),
    "a link that is silent": (OutLane, "end", lambda _, why: "it said nothing" in why),
    "a link that ends with its trunk": (OutboundLink, "_ended", lambda _, __, why: "trunk" in why),
    "links that come back": (OutboundLink, "nudge", lambda _: True),
    "a full trunk": (ServingEnd, "pause_writing", lambda _: True),
    "held reads": (Connections, "_hold", lambda _, effect: effect.hold),
}

FOUNDED_ANEW = "has another data folder"

#: What only long worlds of several nodes play.
AT_LENGTH = {"a silent device"} | {what for what, (owner, *_) in SHOWN.items()
                                   if owner in (OutboundLink, OutLane)}  # fmt: skip


def test_worlds_play_what_a_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = set(SHOWN)

    def watch(what: str, owner: type, name: str, shows: Callable[..., bool]) -> None:
        honest = getattr(owner, name)

        def called(self: Any, *given: Any) -> Any:
            found = honest(self, *given)
            if shows(found, *given):
                missed.discard(what)
            return found

        monkeypatch.setattr(owner, name, called)

    for what, (owner, name, shows) in SHOWN.items():
        watch(what, owner, name, shows)
    # A device is silent for long enough in worlds that last for half a minute.
    for shape, seeds in ((NODE, SEEDS), (UNORDERED, LONG_SEEDS)):
        for seed in seeds:
            run_seed(seed, shape)
            if not missed - (AT_LENGTH if shape is NODE else set()):
                break
    assert not missed
