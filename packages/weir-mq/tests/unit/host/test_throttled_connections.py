"""Who is throttled is not read from; under pressure namespaces have their turns."""

from __future__ import annotations

from collections import Counter

import pytest

from rigs.client_connections import Around, Scene
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.protocol import device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir.protocol.device import DeviceHello


def pings(count: int) -> bytes:
    return b"".join(b"".join(encode_request(m.Ping(), n)) for n in range(count))


def do(around: Around, effect: ef.Effect) -> None:
    around.connections.actions[type(effect)](effect)


def test_who_is_throttled_is_not_read_from_until_it_is_not() -> None:
    scene = Scene()
    scene.greet()
    do(scene.around, ef.HoldSession(scene.peer.session, True))
    assert not scene.transport.reading
    scene.around.queue.held = False
    scene.peer.update()
    assert not scene.transport.reading, "whatever else may go on"
    do(scene.around, ef.HoldSession(scene.peer.session, False))
    assert scene.transport.reading
    do(scene.around, ef.HoldSession(99, True))  # it is gone


def test_who_is_throttled_is_not_taken_for_silent() -> None:
    scene = Scene()
    scene.greet()
    scene.peer.receive(pings(2)[:20])
    do(scene.around, ef.HoldSession(scene.peer.session, True))
    assert scene.sweep_after(3_600) == ""
    do(scene.around, ef.HoldSession(scene.peer.session, False))
    assert scene.sweep_after(61) == "cut"


def test_frames_in_line_wait_as_well() -> None:
    scene = Scene()
    scene.greet()
    scene.peer.receive(pings(200))
    served = len(scene.around.frames)
    do(scene.around, ef.HoldSession(scene.peer.session, True))
    scene.around.connections.backlog.serve_parts()
    assert len(scene.around.frames) == served
    do(scene.around, ef.HoldSession(scene.peer.session, False))
    while scene.around.connections.backlog.parts:
        scene.around.connections.backlog.serve_parts()
    assert len(scene.around.frames) == 201


def hello() -> bytes:
    return b"".join(encode_request(m.Hello("client"), 1))


@pytest.mark.parametrize("before", [0, 2])
def test_what_came_with_a_hello_waits_for_what_that_causes(before: int) -> None:
    """By the hello it is known whose quota it is, which may be overdrawn."""
    scene = Scene()
    backlog = scene.around.connections.backlog
    scene.peer.receive(pings(before) + hello() + pings(3))
    assert len(scene.around.frames) == before + 1
    do(scene.around, ef.HoldSession(scene.peer.session, True))
    backlog.serve_next()
    assert len(scene.around.frames) == before + 1
    assert not backlog.unserved
    do(scene.around, ef.HoldSession(scene.peer.session, False))
    assert len(scene.around.frames) == before + 4


def test_what_came_with_a_hello_is_served_behind_it() -> None:
    scene = Scene()
    scene.peer.receive(hello() + pings(3))
    scene.around.connections.backlog.serve_next()
    assert len(scene.around.frames) == 4


@pytest.mark.parametrize("has_quotas", [False, True])
def test_a_device_with_its_hello_waits_only_where_there_are_quotas(has_quotas: bool) -> None:
    around = Around()
    other, scene = Scene(around), Scene(around)
    if has_quotas:
        do(around, ef.AssignNamespace(other.peer.session, "shop"))
    scene.peer.receive(device.hello(7, 1, "t") + device.publish(0, b"v", 0))
    kinds = [type(frame) for frame in around.frames]
    assert kinds == ([DeviceHello] if has_quotas else [])
    arrived = [event for event in around.queue.events if isinstance(event, ev.Arrived)]
    assert len(arrived) == (not has_quotas), "it comes with others as one event"
    if has_quotas:
        around.connections.backlog.serve_next()
        assert len(around.frames) == 2


def test_under_pressure_a_namespace_gets_as_much_as_any_other() -> None:
    around = Around()
    flood, other = [Scene(around) for _ in range(20)], Scene(around)
    for scene in (*flood, other):
        scene.greet()
        namespace = "bank" if scene is other else "shop"
        do(around, ef.AssignNamespace(scene.peer.session, namespace))
    around.budget.take(1)
    for scene in (*flood, other):
        scene.peer.receive(pings(60_000))
        assert not scene.transport.reading
    around.queue.events.clear()
    for _ in range(40):
        around.connections.backlog.serve_parts()
    served: Counter[bool] = Counter()
    for event in around.queue.events:
        served[event.session == other.peer.session] += len(event.frames)  # type: ignore[union-attr]
    assert min(served.values()) > 0.8 * max(served.values())


def test_without_pressure_nobody_waits_in_line() -> None:
    around = Around()
    scene = Scene(around)
    scene.greet()
    do(around, ef.AssignNamespace(scene.peer.session, "shop"))
    scene.peer.receive(pings(3))
    assert not around.connections.backlog.parts
    around.budget.take(1)
    scene.peer.receive(pings(3))
    assert list(around.connections.backlog.parts) == [scene.peer]


def test_without_namespaces_pressure_changes_nothing() -> None:
    around = Around()
    scene = Scene(around)
    scene.greet()
    around.budget.take(1)
    scene.peer.receive(pings(3))
    assert not around.connections.backlog.parts
