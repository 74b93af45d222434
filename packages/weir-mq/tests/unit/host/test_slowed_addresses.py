"""Logins that fail slow down their address, and never the port."""

from __future__ import annotations

import pytest

from rigs.client_connections import Around, Scene
from weir.access.failures import FREE_FAILURES
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.protocol import device as device


def fail_at(around: Around, address: str, times: int) -> None:
    """Let so many logins from an address fail, as the shard says."""
    around.network.peer = address
    for _ in range(times):
        scene = Scene(around)
        around.connections.actions[ef.Hangup](ef.Hangup(scene.peer.session, "wrong", failed=True))
        assert scene.transport.end == "closed"


def opened_sessions(around: Around) -> set[int]:
    return {event.session for event in around.queue.events if isinstance(event, ev.Opened)}


@pytest.mark.parametrize(
    ("bad", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"),
        ("2001:db8::1", "2001:db8:0:1::1", "2001:db8::ffff"),
    ],
)
def test_failures_slow_their_address_and_never_the_port(bad: str, other: str, same: str) -> None:
    around = Around()
    fail_at(around, bad, FREE_FAILURES + 1)
    around.network.peer = same
    slow = Scene(around)
    assert not slow.transport.reading
    assert slow.peer.session not in opened_sessions(around), (
        "it is not served, so its time has not begun"
    )
    around.network.peer = other
    honest = Scene(around)
    assert honest.transport.reading
    assert honest.peer.session in opened_sessions(around)
    around.connections.check_connections()
    assert slow.peer.session not in opened_sessions(around)
    around.time += 0.2
    around.connections.check_connections()
    assert slow.transport.reading
    assert slow.peer.session in opened_sessions(around)


def test_a_line_that_is_too_long_takes_nobody() -> None:
    around = Around()
    for _ in range(30):
        around.connections.accept_queue.failures.failed("10.0.0.1", around.time)
    scenes = [Scene(around) for _ in range(8)]
    assert [one.transport.end for one in scenes] == [""] * 5 + ["closed"] * 3
    assert around.connections.accept_queue.slowed == 5
    around.time += 100.0
    around.connections.check_connections()
    assert around.connections.accept_queue.slowed == 0


def test_who_only_hangs_up_has_not_failed() -> None:
    around = Around()
    for _ in range(20):
        scene = Scene(around)
        around.connections.actions[ef.Hangup](ef.Hangup(scene.peer.session, "revoked"))
    assert Scene(around).transport.reading
