"""Users come and go under faults, and the audit topic has each change of that once, in the order of
the registry's entries: also those that were asked for shortly before a node was killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from weir.client.access import AccessChange
from weir.client.client import Client
from weir.errors import WeirError
from weir_lab.sim.checkers.authorized import Account
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.scenarios.revocations import Realm
from weir_lab.sim.shape import Shape

#: Verb, kind and resource, as a message of the audit topic has them.
Deed = tuple[str, str, str]

_NODES = 3
_AUDIT = "_weir/audit"
_PROMISE = "Audited"
#: So often the topic is read until it has what was answered, and how long it is between two.
_READS, _BETWEEN_READS = 20, 0.5
_CLOSE: Deed = ("set-mode", "system", "")


class AuditedRealm(Realm):
    """A realm in which the answered changes are looked for in the audit topic."""

    def __init__(self, seed: int) -> None:
        """Draw nothing yet but the world."""
        super().__init__(seed)
        #: How often each change was answered.
        self.answered: Counter[Deed] = Counter()
        #: What the audit topic had of changes in the end.
        self.found: list[dict[str, Any]] = []
        self._kind = ""

    async def _create(self, w: Client, name: str, work: str) -> Account:
        account = await super()._create(w, name, work)
        if self._kind:  # the first ones came before the set was closed, and there was no topic yet
            self.answered["create", "user", f"default/{name}"] += 1
        return account

    async def _change(self, w: Client, kind: str) -> None:
        self._kind = kind
        await super()._change(w, kind)

    async def _open(self, w: Client) -> None:
        await super()._open(w)
        self.answered[_CLOSE] += 2

    def _lost(self, account: Account, changed: AccessChange) -> None:
        super()._lost(account, changed)
        user = f"default/{account.name}"
        self.answered[{
            "revoke": ("revoke", "user", user),
            "password": ("set-password", "user", user),
            "role": ("set-roles", "user", user),
            "rule": ("alter", "role", f"{account.name}-own"),
        }[self._kind]] += 1  # fmt: skip

    async def _finish(self, w: Client) -> None:
        self.answered[_CLOSE] += 1  # by which all began
        for _ in range(_READS):
            try:
                rows = [json.loads(one.value) async for one in w.reader(
                    _AUDIT, start="earliest", follow=False
                )]  # fmt: skip
            except WeirError:
                await asyncio.sleep(_BETWEEN_READS)
                continue
            self.found = [row for row in rows if row["id"].startswith("change:")]
            if not missing(self.answered, self.found):
                break
            await asyncio.sleep(_BETWEEN_READS)
        self.history.found += wrong(self.answered, self.found)


def missing(answered: Counter[Deed], rows: Iterable[dict[str, Any]]) -> Counter[Deed]:
    """Return which answered changes are not there, and how many of each."""
    return answered - Counter((row["verb"], row["kind"], row["resource"]) for row in rows)


def wrong(answered: Counter[Deed], rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return what is wrong with the changes that the audit topic has, in its order. One that was
    asked for again because its answer was lost is another entry, and may be there as well.
    """
    found = [
        (_PROMISE, f"{count} times {' '.join(deed)} was answered, and is not in the audit topic")
        for deed, count in missing(answered, rows).items()
    ]
    seen, highest = set[int](), -1
    for index in (int(row["id"].partition(":")[2]) for row in rows):
        if index in seen:
            found.append((_PROMISE, f"the change of entry {index} is there twice"))
        elif index < highest:
            text = f"the change of entry {index} stands behind that of {highest}"
            found.append((_PROMISE, text))
        seen.add(index)
        highest = max(highest, index)
    return found


def play_audited_changes(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, realm = time.perf_counter(), AuditedRealm(seed)
    violations, played = realm.play(), realm.world
    return Outcome(
        seed, shape, f"{_NODES} nodes", played.faults.count, len(realm.found), violations,
        played.trace_hash, time.perf_counter() - began, played.time,
        promises=frozenset({_PROMISE, *(("Authorized",) if realm.history.is_tested else ())}),
    )  # fmt: skip
