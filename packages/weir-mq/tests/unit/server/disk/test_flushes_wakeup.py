"""Threads wake the loop, which does what they ask for, all of it and in order."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

from weir.server.disk.flushes import LoopWakeup

MANY = 2_000


def test_the_loop_does_all_that_threads_ask_for_each_in_its_order() -> None:
    async def body() -> None:
        wakeup = LoopWakeup(asyncio.get_running_loop())
        told: list[tuple[int, int]] = []
        where: set[int] = set()
        done = asyncio.Event()

        def tell(thread: int, number: int) -> None:
            told.append((thread, number))
            where.add(threading.get_ident())
            if len(told) == 3 * MANY:
                done.set()

        def ask(thread: int) -> None:
            for number in range(MANY):
                wakeup.call(partial(tell, thread, number))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(20):
            await done.wait()
        for thread in threads:
            thread.join()
        wakeup.close()
        assert where == {threading.get_ident()}
        for thread_number in range(3):
            assert [n for t, n in told if t == thread_number] == list(range(MANY))

    asyncio.run(body())


def test_what_is_asked_for_while_the_loop_answers_comes_next() -> None:
    async def body() -> None:
        wakeup = LoopWakeup(asyncio.get_running_loop())
        told: list[str] = []
        done = asyncio.Event()

        def first() -> None:
            wakeup.call(lambda: (told.append("second"), done.set())[0])
            told.append("first")

        wakeup.call(first)
        async with asyncio.timeout(30):
            await done.wait()
        wakeup.close()
        assert told == ["first", "second"]

    asyncio.run(body())


def test_a_closed_bell_holds_no_file() -> None:
    async def body() -> None:
        before = len(os.listdir("/proc/self/fd"))
        wakeup = LoopWakeup(asyncio.get_running_loop())
        assert len(os.listdir("/proc/self/fd")) == before + 1
        wakeup.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(body())
