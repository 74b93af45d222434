"""Blocking calls beside the event loop, which a program that ends does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import io
import select
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from weir.client.connection.system import SYSTEM

R = TypeVar("R")


async def in_daemon(call: Callable[[], R]) -> R:
    """Return what `call` returns, from a thread of its own.

    `asyncio.to_thread` would keep a program from ending for as long as the call takes: a read of a
    pipe that nobody writes to lasts for ever, whatever Ctrl-C says.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():  # somebody still waits
            outcome()

    def work() -> None:
        try:
            outcome = partial(future.set_result, call())
        except BaseException as error:
            outcome = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop may have ended before the call
            loop.call_soon_threadsafe(settle, outcome)

    SYSTEM.get().thread(work, "weir read")
    return await future


def read_some(source: Any, size: int) -> Any:
    """Return up to `size` bytes of a file, b"" at its end; wait for some without holding its lock.

    Python cannot end while a thread is inside the reader of standard input: it aborts.
    """
    if isinstance(source, io.BufferedReader) and hasattr(select, "poll"):
        something = select.poll()
        something.register(source.fileno(), select.POLLIN)
        something.poll()
        return source.read1(size)
    return source.read(size)
