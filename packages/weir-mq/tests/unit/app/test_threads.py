"""Threads for plain functions: what they return and raise, and what becomes of those that hang."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from weir.app.handlers import Threads
from weir.server.interpreter import environment

HANGING = """
import asyncio, threading
from weir.app.handlers import Threads

async def main():
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(_):
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()

    call = asyncio.ensure_future(Threads("t", 1).run(hang, None))
    await begun.wait()
    call.cancel()

asyncio.run(main())
print("ended")
"""


def test_calls_return_raise_and_share_threads() -> None:
    async def test() -> None:
        threads, names = Threads("worker", 2), set()

        def call(number: Any) -> int:
            names.add(threading.get_ident())
            if number == 3:
                raise KeyError(number)
            if number == 4:
                raise StopIteration
            return int(number) * 2

        assert await asyncio.gather(*(threads.run(call, n) for n in (0, 1, 2))) == [0, 2, 4]
        with pytest.raises(KeyError):
            await threads.run(call, 3)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(call, 4)
        assert await threads.run(call, 5) == 10
        assert len(names) <= 2
        threads.close()

    asyncio.run(test())


def test_calls_that_hang_and_were_given_up_stand_in_nobodys_way() -> None:
    async def test() -> None:
        threads, gate, names = Threads("worker", 2), threading.Event(), []

        def call(number: Any) -> int:
            names.append(threading.current_thread())
            if number < 2:
                gate.wait(30)
            return int(number)

        hanging = [asyncio.ensure_future(threads.run(call, n)) for n in (0, 1)]
        while len(names) < 2:
            await asyncio.sleep(0)
        for one in hanging:
            one.cancel()
        async with asyncio.timeout(30):
            assert await asyncio.gather(threads.run(call, 2), threads.run(call, 3)) == [2, 3]
        gate.set()
        for thread in names[:2]:
            thread.join(30)
            assert not thread.is_alive()
        threads.close()
        for thread in names:
            thread.join(30)
            assert not thread.is_alive()

    asyncio.run(test())


def test_a_call_that_hangs_keeps_no_program_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
