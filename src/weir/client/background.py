"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from weir.errors import WeirError

R = TypeVar("R")


class Background:
    """Runs coroutines for other threads, which wait for them. `stop` ends the thread.

    A daemon: a program that ends without `stop` is not kept from it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether `run` can be used here: not stopped, and not a copy made by a fork."""
        return self._thread.is_alive() and self._process == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Return what the coroutine does; Ctrl-C cancels it. Raises `RuntimeError` where unusable.

        What weir raises comes without the other thread's frames: they say nothing to the caller.
        """
        wrong = self._wrong()
        if wrong:
            coroutine.close()
            raise RuntimeError(wrong)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            error = future.exception()
        except BaseException:
            future.cancel()
            raise
        if error is None:
            return future.result()
        if isinstance(error, WeirError):
            error.__traceback__ = None
        try:
            raise error
        finally:
            del error, future  # else the frame and the traceback hold each other

    def iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        """Yield what an async generator yields, each time waiting for the next."""

        async def following() -> R | None:
            return await anext(items, None)

        while (item := self.run(following())) is not None:
            yield item

    def stop(self) -> None:
        """End what still runs, and the thread."""
        if self.running:
            self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wrong(self) -> str:
        if self._process != os.getpid():
            return (
                "this connection belongs to the process that forked this one: connect in each "
                "process by itself, after the fork"
            )
        if not self._thread.is_alive():
            return "the connection is closed: connect again"
        if threading.get_ident() == self._thread.ident:
            return (
                "a callback of weir.sync runs in weir's own thread, where waiting for weir would "
                "last for ever: note what to do, and do it outside"
            )
        return ""


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
