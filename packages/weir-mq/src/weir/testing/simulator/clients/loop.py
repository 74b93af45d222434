"""An asyncio event loop in the virtual time of a world, for one simulated process.

Callbacks run in the order in which they were scheduled, as asyncio promises. The world's dice say
which connection is served first of those that became ready within an instant, how long a turn of
the loop takes, and now and then that a new task begins late. There are no threads, executors,
child processes or signals: a caller that asks for one is refused, and named.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from heapq import heapify, heappop
from types import FrameType
from typing import Any, NoReturn, Protocol, cast
from weakref import WeakValueDictionary

from weir.testing.simulator.world import SECOND, World

#: How long a turn of a busy loop takes, in virtual µs.
_TURN = (1, 400)
#: How likely a new task begins late, and how late.
_LATE = 0.05
_LATE_SECONDS = 0.003
#: From so many timers on, those that were cancelled are dropped once they are half of all.
_TIMERS = 100
#: How many turns are left to a process that was killed, for its tasks to unwind.
_LAST_TURNS = 2_000
_PATIENCE = 100
_US = 1e-6
_ASYNCIO = ("asyncio", "weir.testing.simulator")


class Source(Protocol):
    """A connection that has become ready."""

    #: That of the task that opened it, as asyncio has it: what `ready` calls may begin tasks, and
    #: those take clocks and dice of their process from it.
    context: Context

    def ready(self) -> None:
        """Read or write, in a turn of the loop."""


class Network(Protocol):
    """What a loop's connections are made of."""

    async def connect(
        self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection. Raises `OSError`."""

    def listen(
        self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> asyncio.AbstractServer:
        """Take connections to a port of the process from now on. Raises `OSError`."""


class _NextTurn:
    """When a loop has its next turn: the earliest that was asked for, unless it stands still."""

    def __init__(self) -> None:
        """Have none."""
        self.stands = False
        #: In virtual µs; -1 if none is due.
        self._due = -1
        self._number = 0

    def ask(self, due: int) -> int:
        """Have one at a moment, or before; return its number, or 0 if none is needed for that."""
        if self.stands or 0 <= self._due <= due:
            return 0
        self._due = due
        self._number += 1
        return self._number

    def begin(self, number: int) -> bool:
        """Return whether a turn happens: it does not if another one was asked for since."""
        if number != self._number:
            return False
        self._due = -1
        return True

    def stand(self) -> None:
        """Have none until `go_on`."""
        self.stands = True
        self._due = -1
        self._number += 1

    def go_on(self) -> None:
        """Have turns again."""
        self.stands = False


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one process, from its start to its end."""

    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _thread_id: int | None

    def __init__(self, world: World, network: Network) -> None:
        """Begin with nothing to do, at a time of one's own."""
        super().__init__()
        self.set_debug(False)
        self._clock_resolution: float = _US
        self._world = world
        self._network = network
        #: What the clock said when the world began: no two processes agree about that.
        self._epoch = world.dice.randrange(1, 100_000)
        #: How far the clock of a process that was killed has run ahead.
        self._ahead = 0.0
        #: Connections that became ready since the last turn.
        self._sources: dict[Source, None] = {}
        self._next_turn = _NextTurn()
        self._dead = False
        self._made = 0
        self._living: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()
        self.set_task_factory(cast(Any, self._new_task))
        #: What callbacks and tasks raised that nobody caught.
        self.uncaught: list[str] = []
        self.set_exception_handler(lambda _, context: self._note_uncaught(context))

    def __del__(self) -> None:
        """Say nothing: a world that is over forgets its loops."""

    # -- time ----------------------------------------------------------------------------------

    def time(self) -> float:
        """Return seconds by the clock of this process."""
        return self._epoch + self._world.now * _US + self._ahead

    # -- what the world does -------------------------------------------------------------------

    def enter(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call something in a turn of the loop, soon; of a process that is over, never."""
        if not self._dead:
            self.call_soon(callback, *arguments)
            self.wake()

    def notice(self, source: Source) -> None:
        """Serve a connection in the next turn."""
        if not self._dead:
            self._sources[source] = None
            self.wake()

    def wake(self, after: int = 0) -> None:
        """Have a turn no later than `after` µs from now."""
        if not self._dead and (number := self._next_turn.ask(self._world.now + after)):
            self._world.after(after, self._turn, number)

    def stand(self) -> None:
        """Have no turn until `go_on`: what happens meanwhile waits."""
        self._next_turn.stand()

    def go_on(self) -> None:
        """Have turns again."""
        if self._next_turn.stands:
            self._next_turn.go_on()
            self.wake()

    def drop(self) -> None:
        """End: cancel all tasks, and let them unwind at once, in a time of their own."""
        self._dead = True
        self._sources.clear()
        for turn in range(_LAST_TURNS):
            if not turn % _PATIENCE:  # tasks that still wait are cancelled again
                for task in list(self._living.values()):
                    task.cancel()
            if not self._ready:
                timers = [timer._when for timer in self._scheduled if not timer._cancelled]
                living = [task for task in self._living.values() if not task.done()]
                if not living:
                    break
                if not timers:  # each waits for another one, or for nobody
                    for task in living:
                        task.cancel()
                    if not self._ready:
                        break
                    continue
                self._ahead += max(min(timers) - self.time(), 0.0)
            self._run()
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    # -- turns ---------------------------------------------------------------------------------

    def _turn(self, number: int) -> None:
        if self._dead or not self._next_turn.begin(number):
            return
        self._run()
        if self._ready or self._sources:
            self.wake(self._world.between(*_TURN))
        elif self._scheduled:
            left = self._scheduled[0]._when - self._epoch - self._ahead
            self.wake(max(math.ceil(left * SECOND) - self._world.now, 1))

    def _run(self) -> None:
        before, hooks, mine = events._get_running_loop(), sys.get_asyncgen_hooks(), cast(Any, self)
        self._thread_id = threading.get_ident()
        sys.set_asyncgen_hooks(mine._asyncgen_firstiter_hook, mine._asyncgen_finalizer_hook)
        events._set_running_loop(self)
        try:
            self._run_once()
        finally:
            self._thread_id = None
            events._set_running_loop(before)
            sys.set_asyncgen_hooks(*hooks)

    def _run_once(self) -> None:
        """Serve what is ready, then timers that are due, then all that was scheduled by then."""
        ready = self._ready
        if self._sources:
            sources, self._sources = list(self._sources), {}
            if len(sources) > 1:
                self._world.dice.shuffle(sources)
            for source in sources:
                self.call_soon(source.ready, context=source.context)
        timers = self._scheduled
        if len(timers) > _TIMERS and self._timer_cancelled_count * 2 > len(timers):
            self._forget_cancelled()
        end = self.time() + self._clock_resolution
        while timers and (timers[0]._cancelled or timers[0]._when < end):
            timer = heappop(timers)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        for timer in self._scheduled:
            timer._scheduled = not timer._cancelled
        self._scheduled[:] = [timer for timer in self._scheduled if not timer._cancelled]
        heapify(self._scheduled)
        self._timer_cancelled_count = 0

    def _write_to_self(self) -> None:
        self.wake()

    def _process_events(self, event_list: list[Any]) -> None:
        raise AssertionError("connections say by themselves that they are ready")

    # -- tasks ---------------------------------------------------------------------------------

    def _new_task(
        self,
        _: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, context=context)
        if not self._dead and self._world.chance(_LATE):
            first = self._ready.pop()  # its first step, which it has just scheduled
            late = self._world.dice.random() * _LATE_SECONDS
            self.call_later(late, self._ready.append, first)
        self._made += 1
        self._living[self._made] = task
        return task

    def _note_uncaught(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self._dead:
            self.uncaught.append(f"{context.get('message')}: {error!r}")

    # -- what a process asks for ---------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None,
                                **options: Any) -> Any:  # fmt: skip
        """Connect to a port of a node. Raises `OSError`."""
        if host is None or port is None or any(options.values()):
            _refuse(f"a connection with {sorted(options)}")
        return await self._network.connect(self, protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None,
                            **options: Any) -> Any:  # fmt: skip
        """Listen on a port, on whatever `host`. Raises `OSError`."""
        if port is None or any(options.values()):
            _refuse(f"a server with {sorted(options)}")
        return self._network.listen(self, protocol_factory, port)

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: a thread has no virtual time."""
        _refuse("an executor")

    def set_default_executor(self, executor: Any) -> NoReturn:
        """Refuse: a thread has no virtual time."""
        _refuse("an executor")

    async def getaddrinfo(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: names are known to `create_connection` alone."""
        _refuse("the address of a name")

    async def subprocess_exec(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a child has no virtual time."""
        _refuse("a child process")

    async def subprocess_shell(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a child has no virtual time."""
        _refuse("a child process")

    def add_signal_handler(self, *_: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: signals come to the process that plays the world."""
        _refuse("a signal")

    def run_forever(self) -> NoReturn:
        """Refuse: the world says when there is a turn."""
        _refuse("the loop to run by itself")


def refuse_thread(work: Callable[[], None], name: str) -> NoReturn:
    """Refuse to start a thread. Raises `RuntimeError`, which names the caller."""
    _refuse("a thread")


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"{_caller(sys._getframe(1))} asks for {what}: there is none in a world")


def _caller(frame: FrameType | None) -> str:
    """Return the first place that is not of asyncio or of this package."""
    for each in _frames(frame):
        module = str(each.f_globals.get("__name__", ""))
        if not module.startswith(_ASYNCIO):
            return f"{module}, line {each.f_lineno} ({each.f_code.co_name}),"
    return "somebody"


def _frames(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
