"""What an app takes from the system that it runs on: signals, of one event loop alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from msgspec.structs import replace

from weir.app.app import stopped_by_signals
from weir.client.connection.system import REAL, SYSTEM


class Machine:
    """Keeps who is to be called at a signal."""

    def __init__(self) -> None:
        self.first: list[Callable[[], None]] = []

    def signals(self, first: Callable[[], None]) -> Callable[[], None]:
        self.first.append(first)
        return self.first.clear


async def _stopped(machine: Machine, sends: bool) -> list[bool]:
    SYSTEM.set(replace(REAL, signals=machine.signals))
    stops = [asyncio.Event(), asyncio.Event()]
    with stopped_by_signals(stops[0]), stopped_by_signals(stops[1]):
        assert len(machine.first) == 1
        if sends:
            machine.first[0]()
            assert not machine.first  # the second signal does what it always did
        found = [stop.is_set() for stop in stops]
    assert not machine.first
    return found


def test_a_signal_stops_all_apps_of_its_own_loop_and_no_other() -> None:
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    mine = Machine()
    outer = asyncio.Event()

    async def beside() -> None:
        SYSTEM.set(replace(REAL, signals=mine.signals))
        with stopped_by_signals(outer):
            await asyncio.sleep(0)
            assert len(mine.first) == 1

    try:
        standing = copy_context().run(one.create_task, beside())
        one.call_soon(one.stop)
        one.run_forever()
        assert other.run_until_complete(_stopped(Machine(), sends=True)) == [True, True]
        assert not outer.is_set()
        one.run_until_complete(standing)
    finally:
        one.close()
        other.close()


def test_no_signal_stops_nothing() -> None:
    assert asyncio.run(_stopped(Machine(), sends=False)) == [False, False]
