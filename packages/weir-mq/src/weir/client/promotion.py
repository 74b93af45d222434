"""A core set goes on alone, whose home set is lost: what would be lost with it, and doing it.

A plan is made from what the nodes of the set say of their copies. Nothing is decided by it: the
copy of each group that has most goes on, which may have more by then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from weir.client.connection.network_client import NetworkClient
from weir.errors import BadRequest, NotLeader, Refused, Unavailable, WeirError
from weir.model.ids import (
    REGISTRY_GROUP,
    partition_of,
    place_node,
    place_of,
    place_shard,
)
from weir.order.clock import milliseconds_of
from weir.protocol.client import nodes as n
from weir.protocol.client.declaration import ControlRequest
from weir.protocol.client.topology import (
    CopyList,
    CopyRow,
    DescribeCopies,
    ForceRegistry,
    PromoteSet,
)

#: A node that does not say anything for so long is missing.
_ANSWERS_WITHIN = 5.0
#: How long the registry has to elect a leader, and groups have.
_ELECTED_WITHIN, _LED_WITHIN = 30.0, 60.0
#: How long nodes of another set that were just stopped may count as there: a link that breaks
#: without a word is noticed after 3 s.
ALONE_WITHIN = 5.0
_AGAIN_AFTER = 0.2


R = TypeVar("R")


class GroupLoss(msgspec.Struct, frozen=True):
    """What may be lost of a partition (-1: of the registry) of a topic: all from `offset` on, which
    has stamps after `stamp_ms`, in ms since 1970 (0: nothing is here). `missing` entries are known
    to be lost; the leader was last heard of `silent_ms` ago (-1: nobody knows), so what was
    confirmed since then may be lost as well. `is_whole` where nothing can be.
    """

    topic: str
    partition: int
    nodes: tuple[int, ...]
    offset: int
    stamp_ms: int
    missing: int
    silent_ms: int
    is_whole: bool = False


class PromotionPlan(msgspec.Struct, frozen=True):
    """What it takes to promote a set with these of its nodes, in a lineage; what may be lost by
    that; and the partitions, by topic, of which there is no copy in the set. `others` are nodes of
    other sets that answer. Nodes that are `starting` do not know yet what they have: less may be
    lost than is said. `is_done` says whether all that was done before.
    """

    brokerset: int
    name: str
    lineage: int
    nodes: tuple[int, ...]
    losses: tuple[GroupLoss, ...]
    absent: tuple[tuple[str, int], ...]
    others: tuple[int, ...]
    starting: tuple[int, ...]
    is_done: bool
    #: By place, the voter of the registry there; and the places of all shards.
    registry: dict[int, int]
    places: tuple[int, ...]

    @property
    def is_led(self) -> bool:
        """Whether a node of the set leads the registry: then it need not be forced."""
        return any(one.partition < 0 and one.is_whole for one in self.losses)


class Promoter:
    """Promotes sets over the connections of a client."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over these connections, of which one leads to a node of the set."""
        self._network = network

    async def plan(
        self, brokerset: str, without: Collection[int] = (), *, wait: float = 0.0
    ) -> PromotionPlan:
        """Return what to do to promote a set, by its name or id, without some of its nodes. While
        nodes of other sets answer, it is planned anew for up to `wait` seconds.

        Raises `BadRequest` for a set that cannot be promoted, and `Unavailable` where a node of it
        does not answer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while (plan := await self._plan(brokerset, without)).others and not plan.is_done:
            if loop.time() >= until:
                break
            await asyncio.sleep(_AGAIN_AFTER)
        return plan

    async def _plan(self, brokerset: str, without: Collection[int]) -> PromotionPlan:
        told: dict[int, CopyList] = {}
        view = await self._page(0, -1)
        if brokerset not in (view.name, str(view.brokerset)):
            raise BadRequest(
                f"node {view.node} is of set {view.name or view.brokerset}, not {brokerset}: give "
                f"the address of a node of set {brokerset} alone"
            )
        while more := [one for one in _places(view, without) if one not in told]:
            told |= zip(more, await asyncio.gather(*map(self._copies, more)), strict=True)
            view = max(told.values(), key=lambda one: one.applied)
        if not told:
            raise BadRequest(f"no node of BrokerSet {brokerset} is left to go on")
        return _planned(view, told)

    async def copies(self) -> CopyList:
        """Return what copies the shard has that is asked over these connections."""
        return await self._copies(0)

    async def promote(self, plan: PromotionPlan, *, forced: bool = False) -> n.NodeList:
        """Do it; return the nodes once the registry has decided it. What was done before is not
        done again, so it may be asked for as often as it takes.

        Raises `Unavailable` while a node of another set answers for 5 s, unless `forced`.
        """
        loop = asyncio.get_running_loop()
        if not plan.is_led:
            voters, until = sorted(plan.registry.values()), loop.time() + ALONE_WITHIN
            for place in sorted(plan.registry):
                force = ForceRegistry(place, plan.brokerset, plan.lineage, voters, forced)
                await self._force(force, until)
        request = PromoteSet(plan.brokerset, plan.lineage, list(plan.nodes))
        until = loop.time() + _ELECTED_WITHIN
        while True:
            try:
                return await self._ask(request, n.NodeList)
            except (NotLeader, Unavailable, TimeoutError) as error:
                if loop.time() >= until:
                    raise Unavailable(
                        f"the registry has no leader among the nodes {plan.nodes} after "
                        f"{_ELECTED_WITHIN:g} s: see that they reach each other, and ask again "
                        f"({error})"
                    ) from error
            await asyncio.sleep(_AGAIN_AFTER)

    async def _force(self, request: ForceRegistry, until: float) -> None:
        """Let a copy of the registry go on. Raises `Unavailable` if it may not until then, and
        `BadRequest` at once if there is none.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._ask(request, CopyList)
            except Unavailable:
                if request.forced or loop.time() >= until:
                    raise
            else:
                return
            await asyncio.sleep(_AGAIN_AFTER)

    async def led(self, plan: PromotionPlan) -> list[tuple[str, int]]:
        """Wait until all groups of a promoted set are led; return the topic and partition of those
        that are not after 60 s.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _LED_WITHIN
        while True:
            try:
                told = await asyncio.gather(*map(self._copies, plan.places))
                waiting = sorted(
                    {
                        (row.topic, partition_of(row.group))
                        for rows in told
                        for row in rows.rows
                        if not _is_led(row, plan.nodes)
                    }
                )
            except (NotLeader, Unavailable, TimeoutError):
                waiting = [("", -1)]
            if not waiting or loop.time() >= until:
                return waiting
            await asyncio.sleep(_AGAIN_AFTER)

    async def _copies(self, place: int) -> CopyList:
        found = page = await self._page(place, -1)
        while page.more and page.rows:
            page = await self._page(place, page.rows[-1].group)
            found.rows.extend(page.rows)
        return found

    async def _page(self, place: int, after: int) -> CopyList:
        try:
            return await self._ask(DescribeCopies(place, after), CopyList)
        except (TimeoutError, NotLeader, Unavailable) as error:
            raise Unavailable(_missing(place)) from error
        except Refused:
            raise
        except WeirError as error:
            raise Unavailable(_missing(place)) from error

    async def _ask(self, request: ControlRequest, kind: type[R]) -> R:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await self._network.request(request, kind, again=False)


def _missing(place: int) -> str:
    node, shard = place_node(place), place_shard(place)
    return (
        f"shard {shard} of node {node} does not answer: start the node, or promote the set without "
        f"it (--without {node}), after which it can never come back"
    )


def _places(view: CopyList, without: Collection[int]) -> list[int]:
    """Return the places of the shards of a set."""
    return [
        place_of(node, shard)
        for node, shards in view.members
        for shard in range(shards)
        if node not in without
    ]


def _planned(view: CopyList, told: Mapping[int, CopyList]) -> PromotionPlan:
    """Return the plan that follows from what the shards at places told, of which `view` knows most
    of the registry. Raises `BadRequest`.
    """
    nodes = sorted({place_node(place) for place in told})
    registry = {
        place: row for place, one in told.items() for row in one.rows if row.group == REGISTRY_GROUP
    }
    if lacking := set(nodes) - {place_node(place) for place in registry}:
        raise Unavailable(
            f"node {min(lacking)} has no whole copy of the registry: see its log, or promote the "
            f"set without it (--without {min(lacking)})"
        )
    promoted = max(one.promoted for one in told.values())
    is_done = promoted > 0 and view.home < 0
    if not is_done and view.home < 0:
        raise BadRequest("a set can be promoted only if there are exactly two core sets")
    if view.home == view.brokerset:
        raise BadRequest(
            f"set {view.name or view.brokerset} is home already: its nodes decide once most of "
            "them run"
        )
    lineage = max(row.begun for row in registry.values())
    if lineage <= promoted:  # else it is to be finished
        lineage = max(promoted, *(row.lineage for row in registry.values())) + 1
    return PromotionPlan(
        view.brokerset,
        view.name,
        promoted if is_done else lineage,
        tuple(nodes),
        tuple(_losses(nodes, told.values())),
        tuple(sorted((topic, partition_of(group)) for group, topic in view.absent)),
        tuple(sorted({node for one in told.values() for node in one.others})),
        tuple(sorted({one.node for one in told.values() if one.starting})),
        is_done,
        {place: row.voter for place, row in registry.items()},
        tuple(told),
    )


def _is_led(row: CopyRow, nodes: Collection[int]) -> bool:
    """Whether one of these nodes leads a group, and most of its voters are among them: a leader
    that lost the others does not know it at once.
    """
    return row.leader in nodes and 2 * sum(one in nodes for one in row.voting) > len(row.voting)


def _losses(nodes: Sequence[int], told: Collection[CopyList]) -> Iterator[GroupLoss]:
    """Yield what may be lost of each group, by what its copies are, the registry first."""
    copies: defaultdict[int, list[tuple[int, CopyRow]]] = defaultdict(list)
    for one in told:
        for row in one.rows:
            copies[row.group].append((one.node, row))
    for group, found in sorted(copies.items()):
        rows = [row for _, row in found]
        best = max(rows, key=lambda row: (row.last_term, row.last))
        heard = [row.heard_ms for row in rows if row.heard_ms >= 0]
        yield GroupLoss(
            best.topic,
            -1 if group == REGISTRY_GROUP else partition_of(group),
            tuple(sorted(node for node, _ in found)),
            best.offset,
            milliseconds_of(best.stamp),
            max(max(row.committed for row in rows) - best.last, 0),
            min(heard, default=-1),
            any(_is_led(row, nodes) for row in rows),
        )
