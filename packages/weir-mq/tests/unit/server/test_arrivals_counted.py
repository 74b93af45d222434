"""What comes in crowds over trunks is counted like what comes by itself; nobody loses a welcome."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.model.ids import place_of
from weir.protocol import trunk
from weir.protocol.device import DeviceHello, DevicePublishes
from weir.protocol.trunk import Arrival, Kind
from weir.server.assembly import assemble


class Noting:
    ready = True
    identity = Identity(1)

    def __init__(self) -> None:
        self.budget = Budget(1 << 20)
        self.has_deferred = True

    def step(self, *events: Any) -> list[ef.Effect]:
        return []

    def run_deferred(self) -> list[ef.Effect]:
        return []


class Wire:
    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...


def said(n: int) -> tuple[DeviceHello, DevicePublishes]:
    return DeviceHello(0, n, 1, 0, "t"), DevicePublishes([1], [0], [b"value"], [0])


def one_by_one() -> list[Any]:
    frames: list[Any] = []
    for n in range(10):
        frames += trunk.encode(Kind.OPENED, n, b"ada")
        for request in said(n):
            frames += trunk.encode_device(n, request)
    return frames


def at_once() -> list[Any]:
    return list(trunk.encode_arrivals("ada", [Arrival(n, *said(n)) for n in range(10)]))


def asked(frames: list[Any]) -> int:
    async def body() -> int:
        driver = assemble(cast(Shard, Noting()), {})
        end = driver.trunks.join(cast(Any, Wire()), 1, asks=False).handler
        end.receive(b"".join(frames))
        drivers.run(driver)
        drivers.end(driver)
        return drivers.requests_heard(driver)

    return asyncio.run(body())


def test_a_crowd_that_another_shard_passes_on_is_no_lone_writer() -> None:
    """Else the loop runs its flushes itself, and reads nothing meanwhile."""
    assert asked(one_by_one()) == 20
    assert asked(at_once()) == 20


def test_what_a_device_of_another_node_said_at_once_is_one_event() -> None:
    """So its welcome goes back with its confirm, as a device's of this node does."""

    async def body() -> None:
        driver = assemble(cast(Shard, Noting()), {})
        end = driver.trunks.join(cast(Any, Wire()), place_of(2, 0), asks=False).handler
        end.receive(b"".join(one_by_one()))
        drivers.end(driver)
        arrived = [event for event in drivers.waiting(driver) if isinstance(event, ev.Arrived)]
        assert [len(event.arrivals) for event in arrived] == [10]

    asyncio.run(body())
