"""Processes that handle messages, or only hold them, are killed, some by what they handle: no
message is a dead letter before it had its attempts, and what ends its process is one in the end
(docs/adr/0064).

One node, on which nothing fails: so nobody who counts attempts forgets what it was told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter

from weir.app.app import App
from weir.client.client import Client
from weir.client.consumer.delivery import Delivery
from weir.client.core.retries import Backoff
from weir.model.message import Message
from weir.testing.worlds import Process, World, world
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.shape import Shape

# Deaths are what is played: nobody wants to read what handlers tell of them.
logging.getLogger("weir.app").addHandler(logging.NullHandler())

_MESSAGES = 40
_PARTITIONS = 2
_ATTEMPTS = 4
#: How many messages end their process in each of their attempts.
_KILLERS = 2
_RETRY = Backoff(attempts=_ATTEMPTS, first=0.01, most=0.05, jitter=0)
#: How long a handler works, and how much later somebody else ends a process, in seconds.
_WORK = (0.02, 0.4)
_PAUSES = (0.05, 0.8)
#: How often that happens, and how long it may take in all, in virtual seconds.
_KILLS = 30
_WITHIN = 60.0


class Office:
    """The outcome of each message, in any process."""

    def __init__(self, seed: int) -> None:
        """Draw which messages end their processes."""
        self.world = world(seed, nodes=1, faults=False)
        self.dice = random.Random(f"last attempts {seed}")
        self.killers = set(self.dice.sample(range(_MESSAGES), _KILLERS))
        self.concurrency = self.dice.choice((1, 2, 4))
        self.begun: Counter[int] = Counter()
        self.dead: dict[int, int] = {}
        self.kills = 0
        #: How many handlers work now, and whether the process was ended from outside while one more
        #: could have begun: it may have reported a message, and not begun it.
        self.at_work = 0
        self.was_idle = False
        #: Whether nobody holds messages any more without beginning them.
        self.over = False
        self._process: Process | None = None

    def play(self) -> list[tuple[str, str]]:
        """Let all be handled; return the broken promises."""
        try:
            self.world.run(self._scenario, _WITHIN)
        except TimeoutError as error:
            return [("Live", f"some message never had its last attempt: {error}")]
        return [*self._judged()]

    def _judged(self) -> list[tuple[str, str]]:
        found = []
        for number, attempts in sorted(self.dead.items()):
            # Of what nobody had tried, brokers may take another for what was at work: once.
            if self.begun[number] + 1 + self.was_idle < _ATTEMPTS:
                text = f"{number} is dead after {attempts}, and began {self.begun[number]} times"
                found.append(("AckedOnce", text))
        found += [
            ("EffectOnce", f"{number} ends its processes, and is no dead letter")
            for number in sorted(self.killers - self.dead.keys())
        ]
        return found

    def _app(self) -> App:
        app = App()

        @app.subscribe(
            "work", cluster="crew", retry=_RETRY, dead_letter="dead", concurrency=self.concurrency
        )
        async def handle(message: Message) -> None:
            number = int(message.value)
            self.begun[number] += 1
            self.at_work += 1
            if number in self.killers and self._process is not None:
                self.at_work = 0
                self._process.kill()
                await asyncio.sleep(_WITHIN)
            await asyncio.sleep(self.dice.uniform(*_WORK))
            self.at_work -= 1

        return app

    async def _hold(self) -> None:
        """Have messages in hand until the process dies, and begin none."""
        if self.over:
            return
        async with self.world.connect() as w, w.consumer("work", cluster="crew") as consumer:
            deliveries, held = consumer.deliveries(), list[Delivery]()
            while True:
                if (delivery := deliveries.at_hand()) is None:
                    await deliveries.more()
                else:
                    held.append(delivery)

    async def _scenario(self, surroundings: World) -> None:
        async with surroundings.connect() as w:
            await w.create_topic("work", partitions=_PARTITIONS)
            await w.create_topic("dead", partitions=1)
            async with w.producer("work") as producer:
                await producer.send_many([b"%d" % number for number in range(_MESSAGES)])
            self._process = surroundings.start(self._app)
            processes = [self._process, surroundings.start(self._hold)]
            for _ in range(_KILLS):
                await asyncio.sleep(self.dice.uniform(*_PAUSES))
                self.kills += 1
                ended = self.dice.choice(processes)
                if ended is self._process:
                    self.was_idle |= self.at_work < self.concurrency
                    self.at_work = 0
                ended.kill()
            self.over = True
            processes[1].kill()
            while not await _is_done(w):
                await asyncio.sleep(1.0)
            async for letter in w.reader("dead", start="earliest", follow=False):
                self.dead[int(letter.value)] = int(letter.headers["weir-attempts"])


async def _is_done(client: Client) -> bool:
    found = await client.clusters("work", "crew")
    shares = [share for one in found for share in one.shares]
    return len(shares) == _PARTITIONS and not any(share.lag for share in shares)


def play_killers(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, office = time.perf_counter(), Office(seed)
    violations, played = office.play(), office.world
    return Outcome(
        seed, shape, "one node", office.kills, sum(office.begun.values()), violations,
        played.trace_hash, time.perf_counter() - began, played.time,
    )  # fmt: skip
