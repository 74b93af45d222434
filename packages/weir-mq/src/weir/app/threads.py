"""Threads for handlers that are plain functions; a program that ends does not wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from weir.client.connection.system import SYSTEM

Call = tuple[asyncio.Future[Any], Callable[[Any], Any], Any]


class Threads:
    """Up to `most` threads, started as they are needed, that calls are handed to."""

    def __init__(self, name: str, most: int) -> None:
        """Begin with none."""
        self._name = name
        self._most = most
        self._started = 0
        self._under_way = 0
        self._system = SYSTEM.get()
        self._calls = self._system.queue()

    async def run(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return what `call(argument)` does, or raise what it raises.

        Whoever is cancelled meanwhile goes on; the call cannot be, and its outcome is lost. Its
        thread ends with it, and another takes its place.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        if self._started < min(self._under_way, self._most):
            self._started += 1
            # `concurrent.futures` would wait for a call that hangs when the program ends.
            self._system.thread(self._work, self._name)
        self._calls.put((future, call, argument))
        try:
            return await future
        except asyncio.CancelledError:
            self._started -= future.cancelled()
            raise
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads, each when its call is over."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def _work(self) -> None:
        task: Call | None
        while (task := self._calls.get()) is not None:
            future, call, argument = task
            if future.cancelled():
                return
            try:
                outcome = partial(_settle, future, future.set_result, call(argument))
            except StopIteration as error:  # which no future takes
                failure = RuntimeError(f"the handler raised {error!r}")
                outcome = partial(_settle, future, future.set_exception, failure)
            except BaseException as error:
                outcome = partial(_settle, future, future.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop may have ended before the call
                future.get_loop().call_soon_threadsafe(outcome)
            if future.cancelled():
                return
            del task, future, call, argument, outcome  # what they hold is not kept while idle


def _settle(future: asyncio.Future[Any], how: Callable[[Any], None], what: Any) -> None:
    if not future.done():  # somebody still waits
        how(what)
