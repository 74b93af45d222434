"""`weir work` and `weir cluster redrive`, as they ship; child processes are processes of the world.

A child runs the application's handlers, as `weir.app.worker` does: until it is told to
end, or the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from zlib import crc32

from weir.app.app import App, stopped_by_signals
from weir.app.dead_letters import redrive
from weir.app.supervisor import Child, Event, Plan, Supervisor
from weir.client.client import Client, connect
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, Reject, TopicExists, UnknownTopic, WeirError
from weir.model.message import Message
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.world import MS
from weir_lab.sim.observations import Errands
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

# Faults are what is played: nobody wants to read what handlers tell of them.
logging.getLogger("weir.app").addHandler(logging.NullHandler())

ERRANDS = "errands"
HANDS = "hands"
DEAD = "errands.dead"
_PARTITIONS = 2
_MOST = 3
#: How long the operating system takes to start a process, and how likely it refuses.
_FORK = (1 * MS, 80 * MS)
_REFUSED = 0.05
#: How long until a child hears that its parent is gone.
_HEARS = (0, 20 * MS)
#: Of so many errands one is rejected until handlers are mended.
_REJECTED = 4
_RAISES = 0.05
_RESTS = 0.2
_REST = 0.2
_LEASES = ((0.1, 0.4), (1.0, 4.0))
_GRACES = (0.05, 1.0)
#: How likely `weir work` is told to end in the place of being killed or standing still.
_TERMINATED = 0.3
_COOL_DOWNS = (0.3, 2.0)


class ShippedPublisher(Shipped):
    """Sends so many errands, then waits for the end."""

    def __init__(self, scene: Scene, name: str, times: int, errands: Errands) -> None:
        """Note in `errands` what it sends."""
        super().__init__(scene, name)
        self._left = times
        self._errands = errands

    async def work(self, client: Client) -> None:
        """Publish one after the other."""
        await _create(client)
        while self._left and not self._ending:
            self._left -= 1
            value = b"%s.%d" % (self.name.encode(), self._left)
            self._errands.sent.add(value)
            with self.operation("send an errand"), suppress(Disconnected):
                await client.publish(ERRANDS, value)
                self._errands.confirmed.add(value)
            await self.rest()
        await self.told_to_end()


class ShippedWork(Shipped):
    """`weir work`: as many processes as there is work for."""

    def __init__(self, scene: Scene, name: str, errands: Errands) -> None:
        """Note in `errands` what is done."""
        super().__init__(scene, name, _TERMINATED)
        self.errands = errands
        self.lease = scene.world.dice.choice(_LEASES[scene.brokers.far])
        self.grace = scene.world.dice.choice(_GRACES)
        self._children: list[_Worker] = []
        self._born = 0

    async def work(self, client: Client) -> None:
        """Do nothing: what it runs has connections of its own."""

    async def _once(self) -> None:
        """Supervise until a signal, or the end; processes are left to nobody then."""
        dice = self.world.dice
        least = dice.choice((1, 2))
        plan = Plan(HANDS, self.url, least, _MOST, dice.choice(_COOL_DOWNS), self.grace)
        stop = asyncio.Event()
        supervisor = Supervisor(self.app(), plan, self._start, self._tell)
        beside = asyncio.ensure_future(self._until_done(stop))
        try:
            with stopped_by_signals(stop):
                await supervisor.run(stop)
        except (Disconnected, UnknownTopic) as error:
            self.world.note(self.name, "cannot begin, or go on", str(error))
        else:
            self.finished = self.errands.drained
        finally:
            beside.cancel()
        mine = [one for one in self._children if one.parent is self._loop]
        if left := [one.name for one in mine if one.code is None]:
            self.complain("WorkDone", f"it came to its end, and {left} did not")
        if not self.finished:
            await self.rest()

    async def _until_done(self, stop: asyncio.Event) -> None:
        """Wait until it is to end and nothing is left; what was rejected by then is redriven."""
        await self.told_to_end()
        self.errands.mended = True
        while not self.errands.drained:
            try:
                async with connect(self.url, name="weir-cli", request_timeout=5.0) as client:
                    await _create(client)
                    self.errands.drained = await self._is_over(client)
            except WeirError as error:
                self.expect(error, "WorkDone", "a redrive was refused")
            if not self.errands.drained:
                await self.rest()
        stop.set()

    async def _is_over(self, client: Client) -> bool:
        """Redrive what is dead, and look whether anything is left."""
        begun = sum(len(one.shares) for one in await client.clusters(ERRANDS, HANDS))
        if begun < _PARTITIONS or not await self.is_drained(client, HANDS, ERRANDS):
            return False
        try:
            done = await redrive(client, DEAD, HANDS)
        except UnknownTopic:
            return True  # nothing was rejected
        self.world.note(self.name, "redrives", done.messages)
        return not done.messages

    def _tell(self, event: Event) -> None:
        self.world.note(self.name, "tells", repr(event))

    # -- its processes -------------------------------------------------------------------------

    async def _start(self) -> Child:
        """Stand for the operating system. Raises `OSError`."""
        await self.sleep(self.world.between(*_FORK))
        if not self.spared and self.world.chance(_REFUSED):
            raise OSError(11, "Resource temporarily unavailable")
        self._born += 1
        mine = self._loop
        assert mine is not None
        child = _Worker(self.scene, f"{self.name}.{self._born}", self._born, self, mine)
        self._children = [one for one in self._children if one.code is None]
        self._children.append(child)
        staying = [one.name for one in self._children if one.parent is mine and not one.told]
        if len(staying) > _MOST:
            self.complain("WorkDone", f"there are {len(staying)} processes: {staying}")
        child.start()
        return child

    def _die(self, silent: bool) -> None:
        super()._die(silent)
        for child in self._children:
            if self.retired:
                child.retire()
            elif child.code is None:
                self.world.after(self.world.between(*_HEARS), child.hang_up)

    # -- the application, as a user would write it ---------------------------------------------

    def app(self) -> App:
        """Return the application."""
        app = App(name=self.name)

        @app.subscribe(
            ERRANDS,
            cluster=HANDS,
            retry=Backoff(first=0.02, most=0.3, attempts=3),
            dead_letter=DEAD,
            concurrency=2,
            max_messages=4,
            lease=self.lease,
        )
        async def handle(message: Message) -> None:
            value, errands = message.value, self.errands
            if not errands.mended:
                if not crc32(value) % _REJECTED:
                    errands.rejected[value] += 1
                    raise Reject("nobody can do that")
                if self.world.chance(_RESTS):
                    await asyncio.sleep(self.world.dice.random() * _REST)
                if self.world.chance(_RAISES):
                    raise RuntimeError("a service does not answer")
            errands.done[value] += 1

        return app


class _Worker(Shipped):
    """A child process."""

    def __init__(
        self, scene: Scene, name: str, pid: int, work: ShippedWork, parent: VirtualLoop
    ) -> None:
        super().__init__(scene, name)
        self.pid = pid
        #: Its exit code; None while it lives.
        self.code: int | None = None
        #: Whether it was told to end.
        self.told = False
        self.parent = parent
        self._work = work
        self._over = asyncio.Event()

    async def wait(self) -> int:
        """Return its exit code once it is over."""
        await self._over.wait()
        assert self.code is not None
        return self.code

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.code is not None:
            raise ProcessLookupError
        self.told = True
        if self._first is None:  # it has not come so far that it hears of signals
            self.world.after(1, self._exit, -15, self._loop)
        else:
            super().terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.code is not None:
            raise ProcessLookupError
        self.told = True
        self._exit(-9, self._loop)

    def hang_up(self) -> None:
        """Its parent is gone: it tells itself to end."""
        if self.code is None:
            self.terminate()

    def _befall(self, loop: VirtualLoop) -> None:
        if not self._work.spared and self.code is None:
            super()._befall(loop)

    async def work(self, client: Client) -> None:
        """Do nothing: the application has a connection of its own."""

    async def _once(self) -> None:
        """Run the application, as `weir.app.worker` does."""
        code = 0
        try:
            await self._work.app().run(self.url, cluster=HANDS, grace=self._work.grace)
        except WeirError as error:
            self.world.note(self.name, "ends", str(error))
            code = 1
        self.finished = True
        self.world.after(1, self._exit, code, self._loop)

    def _exit(self, code: int, loop: VirtualLoop | None) -> None:
        if self.code is not None or loop is not self._loop:
            return
        self.code = code
        self.world.note(self.name, "exits", code)
        self._die(silent=False)
        self.parent.enter(self._over.set)


async def _create(client: Client) -> None:
    with suppress(TopicExists):
        await client.create_topic(ERRANDS, _PARTITIONS)
