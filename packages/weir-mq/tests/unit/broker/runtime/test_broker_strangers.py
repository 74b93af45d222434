"""Peers that do not say hello are let go, once, and nobody looks at the others."""

from __future__ import annotations

from typing import Any

from weir.broker.api import effects as ef
from weir.broker.runtime.session import NewSessions, Session
from weir.model.limits import HELLO_WITHIN_MS
from weir.protocol import device as d


def test_those_who_say_nothing_are_overdue_once_and_in_order() -> None:
    strangers = NewSessions(within_ms=100)
    sessions = [Session(n, opened_ms=10 * n) for n in range(4)]
    for session in sessions:
        strangers.add(session)
    sessions[1].welcomed = True
    assert strangers.overdue(100) == []
    assert strangers.overdue(121) == [sessions[0], sessions[2]]
    assert strangers.overdue(130) == []
    assert strangers.overdue(131) == [sessions[3]]
    assert strangers.overdue(9_999) == []


def test_a_shard_hangs_up_on_a_stranger_and_on_nobody_else(rig: Any) -> None:
    rig.topic(rig.connect(), "t")
    rig.connect(2, hello=False)
    rig.device(50, d.hello(7, 1, "t"))
    rig.device(51)
    rig.tick(HELLO_WITHIN_MS + 1)
    hung_up = [effect for effect in rig.others if isinstance(effect, ef.Hangup)]
    assert [effect.session for effect in hung_up] == [2, 51]
    assert hung_up[0].reason == "no hello within 10 s"
