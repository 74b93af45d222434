"""Processes that run handlers as users write them: `weir.App`, an inbox, and a database.

Needs SQLAlchemy: import it where that is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from zlib import crc32

from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from weir.app.app import App
from weir.app.inbox import Inbox
from weir.client.arguments import ConsumerMode
from weir.client.client import Client
from weir.client.consumer.settlement import CLUSTER, OFFSET, PARTITION, REASON
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, Refused, Reject, WeirError
from weir.model.message import Message
from weir.testing.simulator.clients.database import Database, engine_of
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.threads import current_thread, run_in_loop
from weir_lab.sim.history import Seen
from weir_lab.sim.observations import Ledger, Place
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

# Faults are what is played: nobody wants to read what handlers tell of them.
logging.getLogger("weir.app").addHandler(logging.NullHandler())

LEDGER = "ledger"
DEAD = "dead"

#: In seconds: in a hurry, and where programs take their time.
_LEASES = ((0.1, 0.25, 1.0), (1.0, 4.0, 10.0))
_GRACES = (0, 0.05, 1.0)
#: How often rows that nobody needs are looked for, in seconds.
_PRUNES = (0.3, 2.0, 30.0)
#: What a handler does, by how likely that is: raises before its effect, in its transaction, and
#: behind it; and takes its time there, in seconds.
_RAISES = 0.03
_RESTS = 0.15
_REST = 0.4
#: How likely a process is told to end in the place of being killed or standing still.
_TERMINATED = 0.3
#: Of so many messages one is rejected each time; and while there are faults, one ends the process
#: of its handler.
_REJECTED = 11
_KILLS = 29
_FOR_EVER = 3_600.0

_TABLES = MetaData()
_EFFECTS = Table(
    "effects",
    _TABLES,
    Column("id", Integer, primary_key=True),
    Column("partition", Integer),
    Column("offset", Integer),
)


class Office:
    """What the processes of an application share: a database, and what they promise."""

    def __init__(self, scene: Scene) -> None:
        """Draw what the application is like."""
        dice = scene.world.dice
        self.database = Database(scene.world)
        self.ledger = scene.history.ledger = Ledger()
        self.ledger.attempts = dice.choice((0, 3, 5))
        self.mode: ConsumerMode = dice.choice(("shared", "shared", "keyed"))
        self.batch = dice.choice((False, False, True))
        self.timeout = dice.choice((None, 2.0))
        self._world = scene.world

    @property
    def buries(self) -> bool:
        """Whether there is a dead-letter topic."""
        return self.ledger.attempts > 0

    def close(self) -> None:
        """Write down what the database holds, once nobody uses it any more."""
        ledger, database = self.ledger, self.database
        tables = "SELECT name FROM sqlite_master WHERE name = 'effects'"
        if database.rows(tables):
            for partition, offset in database.rows("SELECT partition, offset FROM effects"):
                ledger.effects[partition, offset] += 1
        ledger.lost, ledger.unanswered = database.lost, database.unanswered
        self._world.note("ledger", sorted(ledger.effects.items()), sorted(ledger.dead))


class ShippedApp(Shipped):
    """One process of the application, which a supervisor starts again when it ends."""

    def __init__(self, scene: Scene, name: str, office: Office) -> None:
        """Share the work with the others of `office`."""
        super().__init__(scene, name, _TERMINATED)
        self._office = office
        self._ledger = office.ledger
        dice = scene.world.dice
        self._lease = dice.choice(_LEASES[scene.brokers.far])
        self._concurrency = dice.choice((1, 2, 6))
        #: Whether its handler is a plain function, which blocks a thread.
        self._is_plain = name == "app1"
        #: Whether handlers raise nothing any more that is not of their message.
        self._calm = False

    # -- life and death ------------------------------------------------------------------------

    def _die(self, silent: bool) -> None:
        self._office.database.cut(self.name)
        super()._die(silent)

    def _end_process(self, loop: VirtualLoop | None) -> None:
        if loop is self._loop and loop is not None:
            self.kill()

    async def _once(self) -> None:
        """Run the application until something ends it."""
        self._calm = self._ending
        stop = asyncio.Event()
        try:
            await self._app(stop).run(self.url, stop=stop, grace=self.world.dice.choice(_GRACES))
        except Disconnected as error:
            self.world.note(self.name, "disconnected", str(error))
        except Refused as error:
            self.expect(error, "Live", "an app was refused for good")
        except DBAPIError as error:
            self.world.note(self.name, "has no database", str(error.orig))
        if not self.finished:
            await self.rest()

    async def work(self, client: Client) -> None:
        """Wait until nothing is left to be done and all is to end; nothing more is raised then."""
        if not self._calm:
            await self.told_to_end()
            return
        await self.rest()
        while not await self._has_cluster(client) or not await self.is_drained(client, LEDGER):
            await self.rest()
        if self._office.buries:
            await self._read_dead(client)
        self._ledger.drained = True
        self.finished = True

    async def _has_cluster(self, client: Client) -> bool:
        """Whether the cluster is in all partitions: it is made once handlers may begin."""
        partitions = len((await client.describe(TOPIC)).addresses)
        found = await client.clusters(TOPIC, LEDGER)
        return sum(len(one.shares) for one in found) >= partitions

    async def _read_dead(self, client: Client) -> None:
        dead: dict[Place, bool] = {}
        reader = client.reader(DEAD, start="earliest", follow=False)
        try:
            async for letter in reader:
                if letter.headers[CLUSTER] != LEDGER.encode():
                    self.complain("EffectOnce", f"a dead letter is of {letter.headers[CLUSTER]!r}")
                place = int(letter.headers[PARTITION]), int(letter.headers[OFFSET])
                dead[place] = letter.headers[REASON].startswith(b"delivered ")
        finally:
            await reader.close()
        self._ledger.dead.update(dead)

    # -- the application, as a user would write it ---------------------------------------------

    def _app(self, stop: asyncio.Event) -> App:
        office, dice = self._office, self.world.dice
        engine = engine_of(office.database, self.name)
        inbox = Inbox(LEDGER, prune_every=dice.choice(_PRUNES))
        app = App(name=self.name)
        beside: list[asyncio.Task[None]] = []

        async def watch() -> None:
            try:
                await self.work(app.client)
            except Disconnected as error:
                self.world.note(self.name, "disconnected", str(error))
            except WeirError as error:
                self.expect(error, "Honest", "a dead letter could not be read")
            stop.set()

        @app.on_start
        async def begin() -> None:
            await self._create_topic(app.client)
            await inbox.create(engine)
            async with engine.begin() as connection:
                await connection.run_sync(_TABLES.create_all)
            beside.append(asyncio.create_task(watch()))

        @app.on_stop
        async def end() -> None:
            for task in beside:
                task.cancel()
            await engine.dispose()

        async def handle(message: Message) -> None:
            await self._handle(engine, inbox, [message])

        async def handle_all(messages: Sequence[Message]) -> None:
            await self._handle(engine, inbox, messages)

        def handle_plainly(message: Message) -> None:
            run_in_loop(current_thread(), self._handle(engine, inbox, [message]))

        handler = handle_plainly if self._is_plain else handle
        app.subscribe(
            TOPIC,
            cluster=LEDGER,
            mode=office.mode,
            retry=Backoff(first=0.02, most=0.5, attempts=office.ledger.attempts or None),
            dead_letter=DEAD if office.buries else None,
            concurrency=self._concurrency,
            batch=office.batch,
            max_messages=dice.choice((3, 100)),
            lease=self._lease,
            timeout=office.timeout,
            inbox=inbox,
        )(handle_all if office.batch else handler)
        return app

    async def _handle(self, engine: AsyncEngine, inbox: Inbox, messages: Sequence[Message]) -> None:
        """Handle messages in one transaction."""
        try:
            for message in messages:
                await self._begin(message)
            with self.operation(f"handle {len(messages)}"):
                await self._perhaps()
                async with AsyncSession(engine) as session, session.begin():
                    for message in messages:
                        async with inbox.once(session, message) as fresh:
                            if fresh:
                                where = {"partition": message.partition, "offset": message.offset}
                                await session.execute(insert(_EFFECTS).values(where))
                                await self._perhaps()
                await self._perhaps()
        except BaseException:
            for message in messages:
                self._ledger.failed[_place(message)] += 1
            raise
        for message in messages:
            self.world.note(self.name, "handled", *_place(message))

    async def _begin(self, message: Message) -> None:
        """Note that a message is handled, and refuse those that nobody can handle."""
        place, ledger = _place(message), self._ledger
        ledger.began[place] += 1
        self.world.note(self.name, "handles", *place)
        if message.loaded:
            value = self.history.packed.get((message.partition, message.value), message.value)
            self.history.seen.append(Seen(*place, (value,), message.stamp))
        self.seen = max(self.seen, message.stamp)
        if not self._office.buries:
            return
        number = crc32(b"%d.%d" % place)
        if not number % _KILLS and not self._calm:
            self.world.after(1, self._end_process, self._loop)
            await asyncio.sleep(_FOR_EVER)
        if not number % _REJECTED:
            ledger.hopeless.add(place)
            raise Reject("it is one of those")

    async def _perhaps(self) -> None:
        """Take time, or raise."""
        if self._calm:
            return
        if self.world.chance(_RESTS):
            await asyncio.sleep(self.world.dice.random() * _REST)
        if self.world.chance(_RAISES):
            raise RuntimeError("a service does not answer")


def _place(message: Message) -> Place:
    return message.partition, message.offset
