"""Serves the relays below this one. A pull waits in the task of its request, which reads for it, so
its memory is counted with that connection, and it ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from weir.codec import Buffer, total
from weir.errors import Damaged, Overloaded, Refused, Unavailable
from weir.model.limits import HOLDS_MAX, RELAY_PULLS_WAITING_MAX, RETRY_AFTER_MS
from weir.relay.holds import Child
from weir.relay.messages import AskFilter, Pull
from weir.relay.portion import (
    ANSWER_BYTES_MAX,
    ANSWER_ROWS_MAX,
    Plan,
    Portion,
    chunks_of,
    portion_of,
)
from weir.relay.ports import ReadPortion, SendToChild
from weir.relay.rows import StoredBatches
from weir.relay.state import RelayState
from weir.relay_node.reads import EntriesRead

_BATCHES = StoredBatches()


class EntryReader(Protocol):
    """Reads entries of a group, as `RelayDisk.entries` does."""

    async def entries(self, group: int, indexes: Sequence[int]) -> dict[int, Buffer]:
        """Return by index the bytes of entries; what cannot be read yet is missing."""


class Link(msgspec.Struct):
    """One request of a relay below: the relay, the group, and the actions that it needs."""

    number: int
    group: int
    child: Child
    effects: asyncio.Queue[SendToChild | ReadPortion | Refused] = msgspec.field(
        default_factory=asyncio.Queue
    )


class ChildLinks:
    """The requests of relays below that wait. Of one node, one pull of a group waits at a time."""

    def __init__(self) -> None:
        """Begin without waiters."""
        self._links: dict[int, Link] = {}
        self._of_child: dict[tuple[int, Child], int] = {}
        self._number = 0
        #: By node, how many bytes of messages it was sent; of as many nodes as may be held for.
        self.sent: dict[Child, int] = {}

    def open(self, message: Pull | AskFilter) -> Link:
        """Let a request wait. The pull that the same node has waiting is refused. Raises
        `Overloaded`.
        """
        if len(self._links) >= RELAY_PULLS_WAITING_MAX:
            raise Overloaded("too many pulls of relays wait here", RETRY_AFTER_MS)
        self._number += 1
        link = Link(self._number, message.group, (message.brokerset, message.node))
        if isinstance(message, Pull):
            key = link.group, link.child
            former = self._links.pop(self._of_child.get(key, 0), None)
            if former is not None:
                former.effects.put_nowait(Unavailable("the same node pulls again"))
            self._of_child[key] = link.number
        self._links[link.number] = link
        return link

    def close(self, link: Link) -> bool:
        """A request waits no more; return whether it still counted."""
        if self._links.pop(link.number, None) is None:
            return False
        key = link.group, link.child
        if self._of_child.get(key) == link.number:
            del self._of_child[key]
        return True

    def tell(self, effects: Sequence[SendToChild | ReadPortion]) -> None:
        """Pass on what is to be done for requests; those that wait no more are passed over."""
        for effect in effects:
            if (link := self._links.get(effect.link)) is not None:
                link.effects.put_nowait(effect)
                if isinstance(effect, SendToChild) and effect.data:
                    self._count(link.child, total(effect.data))

    def _count(self, child: Child, size: int) -> None:
        if child in self.sent or len(self.sent) < HOLDS_MAX:
            self.sent[child] = self.sent.get(child, 0) + size

    def end(self, group: int, error: Refused) -> None:
        """Refuse all that wait for a group."""
        for link in [link for link in self._links.values() if link.group == group]:
            self.close(link)
            link.effects.put_nowait(error)


async def read_portion(plan: Plan, state: RelayState, entries: EntryReader) -> Portion | None:
    """Read what a plan names; None if that cannot be read yet. Raises `Damaged`, and `OSError`."""
    plan = plan._replace(credit=min(plan.credit, ANSWER_BYTES_MAX))
    found = await entries.entries(plan.group, plan.indexes)
    plan = plan._replace(indexes=_from_first(plan.indexes, found))
    if not plan.indexes:
        return None
    size = 0
    # The first message alone may be a large value whose chunks are here.
    wanted = chunks_of(plan, EntriesRead(found), state.chunks, _BATCHES) if state.chunks else []
    for index in wanted:
        if not index:
            raise Damaged(f"group {plan.group} lacks a chunk of the value at {plan.first}")
        some = await entries.entries(plan.group, [index])
        if index not in some:
            return None
        found |= some
        size += len(some[index])
        if size > plan.credit:
            break
    portion = portion_of(plan, EntriesRead(found), state.chunks, _BATCHES, ANSWER_ROWS_MAX)
    return portion if portion.chunks or portion.next > portion.first else None


def _from_first(indexes: Sequence[int], found: Mapping[int, Buffer]) -> tuple[int, ...]:
    """Return the indexes that were found, up to the first that was not."""
    for at, index in enumerate(indexes):
        if index not in found:
            return tuple(indexes[:at])
    return tuple(indexes)
