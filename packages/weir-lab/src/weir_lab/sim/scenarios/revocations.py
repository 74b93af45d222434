"""Users come and go in a closed set of three nodes under faults: once a change is answered, nobody
is served what was taken from them (`sim.checkers.authorized`).

Each user is a process with the client that ships, which goes on trying with what it has: its old
password, its old session. Administrators revoke users, take roles and rules away, change passwords,
make namesakes, delete topics; strangers try what they never might.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from weir.client.access import AccessChange, AccessRule
from weir.client.client import Client, connect
from weir.errors import (
    AccessRevoked,
    NotAuthenticated,
    Unauthorized,
    UnknownTopic,
    UserExists,
    WeirError,
)
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.testing.simulator.world import EPOCH_MS
from weir.testing.worlds import World, world
from weir_lab.sim.checkers.authorized import AccessHistory, Account
from weir_lab.sim.outcome import CRASH, Outcome
from weir_lab.sim.shape import Shape

# Sessions that end are what is played: nobody wants to read what consumers tell of them.
logging.getLogger("weir.client").addHandler(logging.NullHandler())

_NODES = 3
_TOPIC, _OTHER = "a", "ab"
#: Faults that come by the seed; clocks and disks concern other worlds.
_FAULTS = ("kill", "depose", "kill shard", "part", "cut", "slow", "pause")
#: What changes, each once, and how long it is between two, in virtual seconds.
_CHANGES = ("revoke", "password", "role", "rule", "mode")
_BETWEEN = (0.1, 1.5)
#: How long after the last fault every shard has heard of everything, and each user was served.
_SETTLED = 6.0
_SERVED = 4.0
_WITHIN = 400.0
_PAUSE = (0.02, 0.4)
#: So many users there are, of whom the first ones keep what they have; strangers come behind.
_USERS, _KEPT = 6, 3
_RIGHTS = {
    "write": AccessRule(("publish",), "topic", _TOPIC),
    "read": AccessRule(("read",), "topic", _TOPIC),
    "consume": AccessRule(("consume",), "topic", _TOPIC),
}
#: What lets nobody do anything with the topic.
_NEAR = (
    AccessRule(("publish", "read", "consume"), "topic", _OTHER),
    AccessRule(("publish", "read", "consume"), "topic", "other/a", True),
    AccessRule(("consume",), "cluster", f"{_OTHER}:crew"),
    AccessRule(("create",), "namespace", "other"),
)
R = TypeVar("R")


class Realm:
    """One world: its users, and what became of what they tried."""

    #: Whose password is guessed all the time, and how many of the kinds of changes happen.
    guessed, changes = "root", len(_CHANGES)
    #: How long a user waits for one answer, or reads on.
    patience = 4.0
    #: Whether the seed breaks nodes, connections and users.
    is_stormy = True
    #: Which user loses something, by number: readers more often, for their waits may outlive a
    #: right.
    changed: tuple[int, ...] = (3, 4, 4, 5)
    #: How often a user does something by one connection: the least, and one more than the most.
    stays = 1, 40

    def __init__(self, seed: int, surroundings: World | None = None) -> None:
        """Draw nothing yet but the world, or take one that is drawn."""
        self.world = surroundings or world(seed, nodes=_NODES, faults=_FAULTS)
        self.history = AccessHistory()
        self._dice = random.Random(f"revocations {seed}")
        #: What each process is by now, by its number: it changes when there is a namesake.
        self._slots: list[Account] = []
        self._is_over = False
        self._count = 0

    def play(self) -> list[tuple[str, str]]:
        """Let all of it happen; return the broken promises."""
        try:
            self.world.run(self._scenario, _WITHIN)
        except TimeoutError as error:
            return [*self.history.found, ("Live", f"administration did not end: {error}")]
        except AssertionError as error:
            return [*self.history.found, (CRASH, str(error))]
        return self.history.found

    # -- users ---------------------------------------------------------------------------------

    def _process(self, slot: int) -> Callable[[], Awaitable[object]]:
        async def visit() -> None:
            while not self._is_over:
                account = self._slots[slot]
                try:
                    await self._work(account, slot)
                except (Unauthorized, NotAuthenticated, AccessRevoked, UnknownTopic) as error:
                    self.history.refuse(account, error, self.world.time)
                    await asyncio.sleep(1.0)  # a login costs as much as a thousand messages
                except (WeirError, OSError, TimeoutError):
                    pass
                await self._pause()

        return visit

    async def _work(self, account: Account, slot: int) -> None:
        url, password = self.world.url, None
        if account.name:
            url, password = url.replace("//", f"//{account.name}@"), account.password
        async with (
            asyncio.timeout(self.patience * self.stays[1] / 10),
            connect(url, password=password) as w,
        ):
            for _ in range(self._dice.randrange(*self.stays)):
                if self._is_over or self._slots[slot] is not account:
                    if account.is_right:
                        return
                    if self._dice.random() < 0.3:
                        return  # the old one tries a few times more
                await self._try(w, account)
                await self._pause()

    async def _try(self, w: Client, account: Account) -> None:
        """Do something once; what it raises ends the connection."""
        await self._do(w, account)

    async def _do(self, w: Client, account: Account) -> None:
        """Do once what an account is there for; strangers draw what they try."""
        work = account.work or self._dice.choice(("write", "read", "consume", "list", "scatter"))
        began = self.world.time
        async with asyncio.timeout(self.patience):
            if work == "write":
                await w.publish(_TOPIC, b"%.6f" % began)
                self._served(account, work, began)
            elif work == "list":
                if any(one.name == _TOPIC for one in await w.topics()):
                    self._served(account, work, began)
            elif work == "scatter":
                async with w.scatter() as s:
                    s.publish(_TOPIC, b"%.6f" % began)
                    s.publish(_TOPIC, b"%.6f" % began)
                self._served(account, work, began)
            elif work == "read":
                await self._read(w, account)
            else:
                await self._consume(w, account)

    async def _read(self, w: Client, account: Account) -> None:
        seen = 0
        async for message in w.reader(_TOPIC, start="latest"):
            self._served(account, "read", float(message.value))
            seen += 1
            if self._dice.random() < 0.02 or self._is_over:
                return

    async def _consume(self, w: Client, account: Account) -> None:
        cluster = account.name.partition("-")[0] or "nobody"
        async with w.consumer(_TOPIC, cluster=cluster, start="latest", lease=1.0) as consumer:
            async for message in consumer:
                self._served(account, "consume", float(message.value))
                await message.ack()
                if self._dice.random() < 0.02 or self._is_over:
                    return

    def _served(self, account: Account, what: str, began: float) -> None:
        self.history.serve(account, what, began, self.world.time)

    async def _pause(self) -> None:
        await asyncio.sleep(self._dice.uniform(*_PAUSE))

    # -- administration ------------------------------------------------------------------------

    async def _pass(self, w: Client, kind: str) -> None:
        """Let a while pass, and then something change."""
        await asyncio.sleep(self._dice.uniform(*_BETWEEN))
        await self._change(w, kind)

    async def _scenario(self, surroundings: World) -> None:
        surroundings.faults.stop()
        async with surroundings.connect() as w:
            while (await _until(w.nodes.raise_level)).level < FORMAT_LEVEL_ACCESS:
                await asyncio.sleep(0.1)  # not all nodes have said yet what they run
            for topic in (_TOPIC, _OTHER):
                await _until(lambda topic=topic: self._create_topic(w, topic))  # type: ignore[misc]
            await _until(lambda: w.access.create_user("root", "pw", ["admin"]))
        root = connect(surroundings.url.replace("//", "//root@"), password="pw")
        async with root as w:
            await self._begin(w)
            if self.is_stormy:
                surroundings.faults.start()
            teller = asyncio.ensure_future(self._tell(w))
            for kind in self._dice.sample(_CHANGES, self.changes):
                await self._pass(w, kind)
            surroundings.heal()
            await asyncio.sleep(_SETTLED)
            self.history.settle(surroundings.time)
            since = surroundings.time
            await asyncio.sleep(_SERVED)
            self.history.found += self.history.unserved(since)
            self._is_over = True
            teller.cancel()
            await self._finish(w)

    async def _finish(self, w: Client) -> None:
        """Look at what else must hold once all is over."""

    async def _begin(self, w: Client) -> None:
        """Let there be users, strangers and those who are nobody; then close the set."""
        for work, rule in _RIGHTS.items():
            await _until(lambda work=work, rule=rule: w.access.change_rules(work, [rule]))  # type: ignore[misc]
        await _until(lambda: w.access.change_rules("near", _NEAR))
        for slot, work in enumerate((*_RIGHTS, *_RIGHTS)):
            self._slots.append(await self._create(w, f"u{slot}", work))
            self._slots[-1].is_kept = slot < _KEPT
        stranger = Account("near", "pw", "", is_stranger=True)
        guesser = Account(self.guessed, "password", "", is_stranger=True)
        await _until(lambda: w.access.create_user("near", "pw", ["near"]))
        strangers = [stranger, guesser, Account("", "", "", is_stranger=True)]
        self._slots += strangers
        self.history.accounts += strangers
        for slot in range(len(self._slots)):
            self.world.start(self._process(slot), f"user {slot}")
        await asyncio.sleep(0.5)
        changed = await _until(lambda: w.access.set_mode("closed"))
        for one in self._slots[_USERS:]:
            self.history.lose(one, self.world.time, not changed.unreached)

    async def _create_topic(self, w: Client, topic: str) -> None:
        await w.create_topic(topic, partitions=2)

    async def _create(self, w: Client, name: str, work: str) -> Account:
        """Let there be a user with a password that is new."""
        self._count += 1
        account = Account(name, f"password {self._count}", work)

        async def create() -> object:
            try:
                return await w.access.create_user(name, account.password, [work])
            except UserExists:  # an answer was lost, and each attempt has another salt
                return await w.access.set_password(name, account.password)

        await _until(create)
        self.history.accounts.append(account)
        return account

    async def _change(self, w: Client, kind: str) -> None:
        """Take something away from a user that does not keep its rights, and give it to another one
        of the same name, or back.
        """
        slot = self._dice.choice(self.changed)
        account = self._slots[slot]
        name, work = account.name, account.work
        if kind == "revoke":
            self._lost(account, await _until(lambda: w.access.revoke_user(name)))
            self._slots[slot] = await self._create(w, name, work)
        elif kind == "password":
            self._count += 1
            new = Account(name, f"password {self._count}", work)
            changed = await _until(lambda: w.access.set_password(name, new.password))
            self._lost(account, changed)
            self.history.accounts.append(new)
            self._slots[slot] = new
        elif kind == "role":
            changed = await _until(lambda: w.access.change_roles(name, remove=[work]))
            self._lost(account, changed)
            await asyncio.sleep(self._dice.uniform(*_BETWEEN))
            account.regained_at = self.world.time
            await _until(lambda: w.access.change_roles(name, add=[work]))
        elif kind == "rule":
            await self._take_rule(w, account)
        else:
            await self._open(w)

    async def _take_rule(self, w: Client, account: Account) -> None:
        """Give a user a role of its own, which then loses its only rule."""
        name, rule = account.name, _RIGHTS[account.work]
        role = f"{name}-own"
        await _until(lambda: w.access.change_rules(role, [rule]))
        await _until(lambda: w.access.change_roles(name, add=[role]))
        await _until(lambda: w.access.change_roles(name, remove=[account.work]))
        await asyncio.sleep(self._dice.uniform(*_BETWEEN))
        self._lost(account, await _until(lambda: w.access.change_rules(role, remove=[rule])))
        await asyncio.sleep(self._dice.uniform(*_BETWEEN))
        account.regained_at = self.world.time
        await _until(lambda: w.access.change_roles(name, add=[account.work]))

    async def _open(self, w: Client) -> None:
        """Open the set to everybody for a while."""
        for one in self._slots[_USERS:]:
            one.regained_at = self.world.time
        watched = await _until(lambda: w.access.set_mode("watch"))
        await self._watch()
        changed = await _until(lambda: w.access.set_mode("closed"))
        for one in self._slots[_USERS:]:
            one.regained_at, one.lost_at, one.is_unsure = None, None, False
            self._closed(one, changed, not watched.unreached)

    async def _watch(self) -> None:
        """Let a while pass in which everybody may do everything."""
        await asyncio.sleep(self._dice.uniform(*_BETWEEN))

    def _closed(self, stranger: Account, changed: AccessChange, all_watched: bool) -> None:
        """The set was closed for a stranger, and `all_watched` before."""
        self.history.lose(stranger, self.world.time, not changed.unreached)

    def _lost(self, account: Account, changed: AccessChange) -> None:
        account.regained_at = None
        stops_by = changed.stops_by_ms / 1_000 - EPOCH_MS / 1_000 if changed.stops_by_ms else None
        self.history.lose(account, self.world.time, not changed.unreached, stops_by)

    async def _tell(self, w: Client) -> None:
        """Publish without pause: what readers get must be of before they lost their right."""
        while True:
            try:
                await w.publish(_TOPIC, b"%.6f" % self.world.time)
            except WeirError:
                await self._pause()
            await asyncio.sleep(0.2)


async def _until(do: Callable[[], Awaitable[R]]) -> R:
    """Do something until it is answered; asking again does what asking once does."""
    while True:
        try:
            return await do()
        except (WeirError, OSError) as error:
            if isinstance(error, Unauthorized | NotAuthenticated | AccessRevoked | UserExists):
                raise
            await asyncio.sleep(0.2)


def play_revocations(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, realm = time.perf_counter(), Realm(seed)
    violations, played = realm.play(), realm.world
    return Outcome(
        seed, shape, f"{_NODES} nodes", played.faults.count, realm.history.served, violations,
        played.trace_hash, time.perf_counter() - began, played.time,
        promises=frozenset({"Authorized"} if realm.history.is_tested else ()),
    )  # fmt: skip
