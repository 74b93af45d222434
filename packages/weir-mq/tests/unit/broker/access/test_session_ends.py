"""Ends of sessions take no memory once those are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rigs.broker_rig import FakeTime
from weir.broker.access.session_ends import SessionEnds
from weir.broker.runtime.session import Session

YEAR = 365 * 86_400


def test_sessions_that_are_gone_leave_nothing_until_their_tokens_end() -> None:
    sessions: dict[int, Session] = {}
    time = FakeTime()
    authorizer: Any = SimpleNamespace(access=SimpleNamespace(issuers=None))
    cutoff: Any = SimpleNamespace(is_over=False)
    ends = SessionEnds(sessions, authorizer, time, cutoff)
    expires = time.wall_ms() / 1_000 + YEAR
    kept = sessions[0] = Session(0, 0)
    ends.set(kept, expires)
    for number in range(1, 20_000):
        session = sessions[number] = Session(number, 0)
        ends.set(session, expires)
        ends.set(kept, expires + number % 2)  # it renews again and again
        del sessions[number]
    assert len(ends) < 2_000
    time.monotonic += YEAR * 1_000 + 60_000
    time.wall += YEAR * 1_000 + 60_000
    ended = []
    for session, _ in ends.due():
        ended.append(session)
        del sessions[session.id]
    assert ended == [kept]
