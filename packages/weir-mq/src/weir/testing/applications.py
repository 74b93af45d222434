"""Processes of an application in a world."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from weir.app.app import App
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.database import Database
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.process import Mishaps
from weir.testing.simulator.clients.process import Process as SimulatedProcess
from weir.testing.simulator.world import MS, SECOND
from weir.testing.simulator.world import World as VirtualTime

#: What a process runs: called at each start.
Main = Callable[[], App | Awaitable[object]]

_MISHAPS = replace(Mishaps(), terminated=0.3)
#: How long a supervisor waits before it starts a process again that has ended.
_AGAIN = (100 * MS, 2 * SECOND)
#: So many ends by an exception are no fault of the world's any more.
_ENDS_MAX = 100
_LOOK = 0.02


@dataclass(slots=True)
class Surroundings:
    """What all processes of a world have in common."""

    virtual: VirtualTime
    brokers: BrokerSet
    database: Database
    url: str
    #: A larger value is sent in pieces of this size.
    chunk_bytes: int
    #: What fails the run.
    error: BaseException | None = None


class Process(SimulatedProcess):
    """A process of the application, which is started again when it ends by a fault."""

    def __init__(
        self, around: Surroundings, main: Main, name: str, site: int, immune: bool = False
    ) -> None:
        """Be down; `World.start` starts it. What an immune one raises fails the run."""
        super().__init__(around.virtual, around.brokers, name, site, _MISHAPS, around.chunk_bytes)
        #: What it raised, or what its callbacks and tasks raised that nobody caught.
        self.errors: list[BaseException | str] = []
        #: Whether `main` has returned.
        self.finished = False
        self.spared = immune
        self._around = around
        self._immune = immune
        self._run = main
        self._stopping = False
        self._task: asyncio.Task[object] | None = None

    # -- for scenarios -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether it runs just now."""
        return self._loop is not None

    async def wait(self) -> None:
        """Wait until `main` has returned, or the `App` has ended that `stop` told to end."""
        while not self.finished:
            await asyncio.sleep(_LOOK)

    async def stop(self) -> None:
        """Send it SIGTERM, and wait until it has ended. Only an `App` hears of it."""
        self._stopping = True
        while not self.finished:
            self.terminate()
            await asyncio.sleep(_LOOK)

    def kill(self) -> None:
        """Lose the process, its connections first, once whoever asks waits for something.

        What its tasks do on their way out reaches nobody. Another life begins after a while.
        """
        self.world.after(0, super().kill)

    def pause(self, seconds: float) -> None:
        """Let it stand still for so many virtual seconds."""
        self.stand(int(seconds * SECOND))

    def jump_clock(self, seconds: float) -> None:
        """Set its wall clock forward by so many seconds, or back, until it is started anew."""
        self._skew_us += int(seconds * SECOND)

    @property
    def whereabouts(self) -> str:
        """Where it waits, for the report of a run that does not end."""
        places = []
        waits: object = self._task.get_coro() if self._task is not None else None
        while waits is not None and (frame := getattr(waits, "cr_frame", None)) is not None:
            places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            waits = getattr(waits, "cr_await", None)
        return f"{self.name} waits in {' > '.join(places)}" if places else f"{self.name} is down"

    # -- lives ---------------------------------------------------------------------------------

    def spare(self, spared: bool) -> None:
        """Let nothing befall it any more, or let things befall it again."""
        before, self.spared = self.spared, spared or self._immune
        if before and not self.spared:
            self.expose()

    def started(self) -> None:
        """Begin a life."""
        self._task = None

    async def main(self) -> None:
        """Run what it is to run, once; see what becomes of the process then."""
        mine = self._loop
        self._task = asyncio.current_task()
        error: Exception | None = None
        told = False
        try:
            found = self._run()
            if isinstance(found, App):
                told = True
                await found.run(self._around.url)
            elif inspect.isawaitable(found):
                await found
            else:
                raise TypeError(f"{self.name} is to return an App or a coroutine, not {found!r}")
        except Exception as raised:
            error = raised
        if mine is None or mine is not self._loop:
            return  # it was killed
        if error is not None:
            self._raised(error, mine)
        elif told and not self._stopping:
            self._again(mine)  # a supervisor's: it was told to end
        else:
            self.finished = True
            self.world.note("ended", self.name)
            self.world.after(0, self._over, mine)

    def failed(self, uncaught: list[str]) -> None:
        """Keep what nobody caught."""
        self.errors += uncaught

    def _die(self, silent: bool) -> None:
        self._around.database.cut(self.name)
        super()._die(silent)

    def _raised(self, error: Exception, mine: VirtualLoop) -> None:
        self.world.note("raised", self.name, type(error).__name__)
        forgiven = not self.spared and not isinstance(error, AssertionError)
        if forgiven and len(self.errors) < _ENDS_MAX:
            self.errors.append(error)
            self._again(mine)
        else:
            self._around.error = self._around.error or error

    def _again(self, mine: VirtualLoop) -> None:
        self.world.after(0, self._over, mine)
        if not self._stopping:
            self.world.after(self.world.between(*_AGAIN), self.start)
        else:
            self.finished = True

    def _over(self, mine: VirtualLoop) -> None:
        if mine is self._loop:
            self._die(silent=False)
