"""Threads of a simulated process: they run one at a time, while their world stands still.

A thread goes on until it waits for something that happens in its process's event loop; then the
world goes on, until that has happened. So the seed decides what blocking code meets, too.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from weir.client.connection.system import Background
from weir.testing.simulator.clients.loop import VirtualLoop

R = TypeVar("R")

#: Real seconds that a thread may take until it waits: far more than any takes that is not stuck.
_STUCK_SECONDS = 60.0


class Ended(BaseException):
    """The process of a thread is over: the thread unwinds, and what it asks for does not happen."""


class VirtualThread:
    """A thread of a process, which runs while the process's event loop stands still for it."""

    def __init__(self, loop: VirtualLoop, work: Callable[[], None]) -> None:
        """Be ready to `go_on`."""
        self.loop = loop
        #: Whether its process is over, and whether it is over itself.
        self.ended = False
        self.over = False
        self._work = work
        self._turn = threading.Semaphore(0)
        self._waits = threading.Semaphore(0)
        context = copy_context()
        context.run(_CURRENT.set, self)
        # A daemon: one that is stuck does not keep the player of worlds from ending.
        target = context.run
        self._thread = threading.Thread(
            target=target, args=(self._run,), name="weir virtual thread", daemon=True
        )
        self._thread.start()

    def go_on(self) -> None:
        """Let it run until it waits again, or is over: the world calls this. Raises `RuntimeError`
        if it waits for what no world has, as a lock of another thread.
        """
        if self.over:
            return
        self._turn.release()
        if not self._waits.acquire(timeout=_STUCK_SECONDS):
            raise RuntimeError(
                f"a thread of a world waits for something outside for {_STUCK_SECONDS:g} s: only "
                "calls of weir.sync may block in a world"
            )

    def wait(self) -> None:
        """Let the world go on until `go_on`: the thread itself calls this. Raises `Ended`."""
        if not self.ended:
            self._waits.release()
            self._turn.acquire()
        if self.ended:
            raise Ended

    def end(self) -> None:
        """Its process is over: let it unwind, at once."""
        self.ended = True
        self.go_on()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.ended:
                self._work()
        except Ended:
            pass
        finally:
            self.over = True
            self._waits.release()


_CURRENT: ContextVar[VirtualThread | None] = ContextVar("weir virtual thread", default=None)


def current_thread() -> VirtualThread:
    """Return the virtual thread that asks. Raises `RuntimeError` in any other."""
    thread = _CURRENT.get()
    if thread is None or threading.current_thread() is not thread._thread:
        raise RuntimeError("blocking code of a world runs in a thread of its process: start one")
    return thread


class VirtualBackground(Background):
    """What `weir.sync` waits by in a world: the loop of the process runs the coroutines."""

    def __init__(self, name: str) -> None:
        """Belong to the thread that asks, by whatever name."""
        self._thread = current_thread()
        self._stopped = False

    @property
    def running(self) -> bool:
        """Whether `run` can be used here."""
        return not self._stopped

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Return what the coroutine does. Raises `RuntimeError` once it is stopped."""
        if self._stopped:
            coroutine.close()
            raise RuntimeError("the connection is closed: connect again")
        return run_in_loop(self._thread, coroutine)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last`; the loop goes on with its process."""
        first, self._stopped = not self._stopped, True
        if not first or last is None:
            return
        loop = self._thread.loop
        if self._thread.ended:  # as tasks do that unwind, it ends what it has, and reaches nobody
            loop.enter(lambda: loop.create_task(last()))
        else:
            run_in_loop(self._thread, last())


class VirtualQueue:
    """What threads of a process wait by for work: each item goes to the thread that has waited
    longest.
    """

    def __init__(self) -> None:
        """Be empty."""
        self._items: deque[Any] = deque()
        self._waiting: deque[VirtualThread] = deque()

    def put(self, item: Any) -> None:
        """Put something in line."""
        self._items.append(item)
        if self._waiting:
            thread = self._waiting.popleft()
            thread.loop.enter(thread.go_on)

    def get(self) -> Any:
        """Return what is next in line; let the world go on until something is."""
        thread = current_thread()
        while not self._items:
            self._waiting.append(thread)
            thread.wait()
        return self._items.popleft()


def run_in_loop(thread: VirtualThread, coroutine: Coroutine[Any, Any, R]) -> R:
    """Have the loop of a thread's process run a coroutine, and return what it does."""
    loop, context = thread.loop, copy_context()
    task: asyncio.Task[R] | None = None

    def begin() -> None:
        nonlocal task
        task = loop.create_task(coroutine, context=context)
        task.add_done_callback(lambda _: thread.go_on())

    loop.enter(begin)
    try:
        thread.wait()
    finally:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()
    assert task is not None
    return task.result()


async def in_thread(loop: VirtualLoop, threads: list[VirtualThread], call: Callable[[], R]) -> R:
    """Return what blocking code does, in a thread of its own that is noted among `threads`."""
    future: asyncio.Future[R] = loop.create_future()

    def work() -> None:
        try:
            result = call()
        except Exception as error:
            loop.enter(_settle, future, future.set_exception, error)
        else:
            loop.enter(_settle, future, future.set_result, result)

    thread = VirtualThread(loop, work)
    threads.append(thread)
    loop.enter(thread.go_on)
    try:
        return await future
    finally:
        if thread.over:
            threads.remove(thread)


def _settle(future: asyncio.Future[Any], how: Callable[[Any], None], what: Any) -> None:
    if not future.done():
        how(what)
