"""Users come and go while a node hears no other node, and leads a topic all the same, for that has
one replica: what was taken from users is not served any more by the time that the answer to
the administrator names.

Sessions at that node go on until the cut-off and then end; nobody is let in meanwhile (ADR 0095,
0106). Half of the users reach that node alone, the others and the administrator all other nodes.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from weir.client.access import AccessChange
from weir.client.client import Client
from weir.errors import Disconnected, NotLeader, Unavailable
from weir.testing.worlds import World
from weir_lab.sim.checkers.authorized import Account
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.scenarios.revocations import Realm
from weir_lab.sim.shape import Shape

_NODES = 3
_STALE_MS, _CUTOFF_MS = 1_200, 3_000
#: How much later than the cut-off a shard may end what it let in, in seconds, as answers say.
_MARGIN = 5.0
#: How long users have to log in at all nodes.
_LET_IN = 4.0
#: How long a node is cut off before a change, and how long it stays so after the answer to it.
_BEFORE = (0.0, 1.5)
_AFTER = (_CUTOFF_MS / 1_000 + _MARGIN, _CUTOFF_MS / 1_000 + _MARGIN + 2.0)
#: How likely a change meets a node that is cut off.
_LIKELY = 0.8


class CutOffRealm(Realm):
    """A realm in which most changes meet a node that is cut off."""

    #: Not the administrator's, which logs in again whenever its node is cut off: each login would
    #: wait behind those of the guesser.
    guessed, changes = "nobody", 2
    stays = 40, 200
    #: A reader on the side of the node that is cut off, where a kept user writes.
    changed = (4,)
    #: A reader that begins anew asks the registry first.
    patience = 60.0
    #: Whose connection ends by a fault is not let in again while the node is cut off.
    is_stormy = False

    def __init__(self, seed: int) -> None:
        """Draw nothing yet but the world."""
        super().__init__(seed, World(seed, _NODES, False, (_STALE_MS, _CUTOFF_MS)))
        #: The node that has the topic, and is cut off.
        self._away = 0
        #: Whether no node is cut off for the change that is made.
        self._is_calm = True

    async def _create_topic(self, w: Client, topic: str) -> None:
        made = await w.create_topic(topic, partitions=1, replicas=1)
        self._away = self._away or made.addresses[0].node

    async def _try(self, w: Client, account: Account) -> None:
        """Keep the connection: one that was let in before the cut is not let in again."""
        with suppress(Disconnected, Unavailable, NotLeader, TimeoutError):
            await self._do(w, account)

    async def _pass(self, w: Client, kind: str) -> None:
        is_cut_off = self._dice.random() < _LIKELY
        if is_cut_off and kind != "mode":  # a set that is opened is cut off while it watches
            await self._cut_off()
        self._is_calm = not is_cut_off
        await self._change(w, kind)
        if is_cut_off:
            await asyncio.sleep(self._dice.uniform(*_AFTER))
            self.world.faults.rejoin()
            await asyncio.sleep(self._dice.uniform(*_BEFORE))

    async def _cut_off(self) -> None:
        await asyncio.sleep(_LET_IN)
        self.world.faults.divide(self._away)
        await asyncio.sleep(self._dice.uniform(*_BEFORE))

    async def _watch(self) -> None:
        if self._is_calm:
            await super()._watch()
        else:
            await self._cut_off()

    def _closed(self, stranger: Account, changed: AccessChange, all_watched: bool) -> None:
        """Shards that watched stop as those do that were closed; others are open until they hear
        of it.
        """
        stops_by = self.world.time + _CUTOFF_MS / 1_000 + _MARGIN if all_watched else None
        self.history.lose(stranger, self.world.time, not changed.unreached, stops_by)


def play_cut_off_shards(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, realm = time.perf_counter(), CutOffRealm(seed)
    violations, played = realm.play(), realm.world
    return Outcome(
        seed, shape, f"{_NODES} nodes", played.faults.count, realm.history.served, violations,
        played.trace_hash, time.perf_counter() - began, played.time,
        promises=frozenset({"Authorized"} if realm.history.is_tested else ()),
    )  # fmt: skip
