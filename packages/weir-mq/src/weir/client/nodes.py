"""Looking after the nodes of a set, and the topology of its system, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.promotion import Promoter, PromotionPlan
from weir.errors import BadRequest, NodeInUse, NotLeader, Refused, Unavailable, WeirError
from weir.model.ids import place_of
from weir.protocol.client import nodes as n
from weir.protocol.client.relays import DescribeRelay, RelayInfo
from weir.protocol.client.topology import (
    ApplyTopology,
    CopyList,
    DescribeTopology,
    TopologyState,
)
from weir.protocol.link import join_key
from weir.topology.sets import Topology

#: A node that does not say anything for so long is shown as down.
_ANSWERS_WITHIN = 2.0
_AGAIN_AFTER = 0.2
#: A transfer of leadership takes one election; Raft itself gives up earlier than this.
_LEADS_WITHIN = 5.0


class NodeStatus(msgspec.Struct, frozen=True):
    """A node: what the registry says of it, and what it says of itself while it is `up`.

    `replicas` and `leaders` count groups that are to lie on it and to be led by it; `held` and
    `led` those that do now. Of its replicas `lagging` are not up to date, as their leaders see it.
    `moving` groups are led by it and not where they are wanted yet; `leaving` may still need it
    until they have moved away.
    """

    id: int
    host: str
    port: int
    state: str
    level: int
    replicas: int
    leaders: int
    shards: int
    up: bool
    held: int
    led: int
    moving: int
    leaderless: int
    lagging: int
    leaving: int


class SetStatus(msgspec.Struct, frozen=True):
    """All nodes of a set, the format level that is written, and the node that was asked."""

    system: int
    level: int
    logs: int
    asked: int
    nodes: tuple[NodeStatus, ...]

    @property
    def settled(self) -> bool:
        """Whether every group is led, up to date, and where it is wanted, as far as one can see."""
        return all(
            one.up and not (one.moving or one.leaderless or one.lagging) for one in self.nodes
        )


class Nodes:
    """The nodes of the set that a client is connected to."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `nodes` this is."""
        self._network = network

    async def list(self) -> n.NodeList:
        """Return the nodes as the registry has them."""
        return await self._network.request(n.ListNodes(), n.NodeList)

    async def sets(self) -> n.SetList:
        """Return the BrokerSets, their nodes, and where groups have most of their voters."""
        return await self._network.request(n.ListSets(), n.SetList)

    async def status(self) -> SetStatus:
        """Return how every node is; one that does not answer within 2 s is shown as down."""
        listed = await self.list()
        places = [
            place_of(row.id, shard) for row in listed.nodes for shard in range(max(row.shards, 1))
        ]
        found = await asyncio.gather(*map(self._shard, places))
        infos = [info for info in found if info is not None]
        return SetStatus(
            listed.system,
            listed.level,
            listed.logs,
            listed.node,
            tuple(_status(row, infos) for row in listed.nodes),
        )

    async def add(
        self, host: str, port: int, node: int = 0, *, join_secret: bytes = b""
    ) -> n.NodeList:
        """Register a node, as number `node` or the next; groups come to it once it runs.

        In a closed set whose links show no certificates, the node must be founded with the
        `join_secret`: random bytes, of which the set gets a digest. Asked again for the same
        address before the node ran, it returns the same registration, and the last secret counts.
        """
        key = join_key(join_secret) if join_secret else b""
        return await self._network.request(n.ChangeNode("add", node, host, port, key), n.NodeList)

    async def activate(self, node: int) -> n.NodeList:
        """Let a node that was being drained be given groups again."""
        return await self._change("active", node)

    async def drain(self, node: int) -> n.NodeList:
        """Let leaders, then replicas, move from a node to others. See `drained`."""
        return await self._change("drain", node)

    async def drained(self, node: int, seconds: float) -> SetStatus:
        """Return once nothing lies on a node any more. Raises `NodeInUse` after so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            status = await self.status()
            left = sum(one.replicas + one.leaving for one in status.nodes if one.id == node)
            if not left:
                return status
            if loop.time() >= until:
                raise NodeInUse(
                    f"{left} groups still need node {node} after {seconds:g} s: "
                    "`weir node status` shows how far it is",
                    left,
                )
            await asyncio.sleep(_AGAIN_AFTER)

    async def remove(self, node: int) -> n.NodeList:
        """Take a node out of the set for good. Raises `NodeInUse` while a group needs it."""
        return await self._change("remove", node)

    async def raise_level(self, level: int = 0) -> n.NodeList:
        """Let all nodes write format level `level`, or the highest that all of them support."""
        return await self._network.request(n.RaiseLevel(level), n.NodeList)

    async def transfer(self, topic: str, partition: int, node: int = 0) -> n.Transferred:
        """Let a node lead a partition; 0 is the one that it was meant for. Return once that node
        has committed an entry of its term. While it is catching up the leader is asked again, for
        as long as a request may take.

        Raises `Unavailable` with the reason if it is not handed over then, or the node does not
        lead within 5 s.
        """
        places = await Places.find(self._network, topic)
        if not 0 <= partition < len(places):
            raise BadRequest(f"topic {topic} has the partitions 0 to {len(places) - 1}")
        loop = asyncio.get_running_loop()
        try:
            begun = await places.ask(
                partition, lambda address: n.TransferLeader(address, node), n.Transferred
            )
        except (NotLeader, Unavailable) as error:
            down = [str(one.id) for one in (await self.status()).nodes if not one.up]
            silent = f"no answer of node {', '.join(down)}: start them; " if down else ""
            raise Unavailable(
                f"no leader of partition {partition} of {topic} was found that could hand it over; "
                f"{silent}{error}. `weir node status` shows who leads"
            ) from error
        leader, until = 0, loop.time() + _LEADS_WITHIN
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await places.find_again()
                    # A leader tells positions only after it committed an entry of its own term.
                    await places.positions(partitions=[partition])
            except (TimeoutError, NotLeader, Unavailable):
                leader = -1
            else:
                leader = places[partition].node
                if leader in (begun.node, 0):  # 0: the node is alone
                    return begun
            await asyncio.sleep(min(_AGAIN_AFTER, max(until - loop.time(), 0.0)))
        raise Unavailable(await self._why_not(topic, partition, begun.node, leader))

    async def _why_not(self, topic: str, partition: int, node: int, leader: int) -> str:
        """Return why a node does not lead a partition that was handed to it."""
        rows = {one.id: one for one in (await self.status()).nodes}
        there = rows.get(node)
        if there is None or not there.up:
            reason = f"node {node} does not answer: start it, or name another node"
        else:
            reason = (
                f"node {node} answers, but it was not elected: see with `weir node status` whether "
                "its replica is up to date, and try again"
            )
        who = f"node {leader} still leads it" if leader > 0 else "no node leads it now"
        return (
            f"node {node} did not take over partition {partition} of {topic} within "
            f"{_LEADS_WITHIN:g} s; {who}. {reason}"
        )

    async def _change(self, verb: str, node: int, host: str = "", port: int = 0) -> n.NodeList:
        request = n.ChangeNode(verb, node, host, port)
        return await self._network.request(request, n.NodeList)

    async def _shard(self, place: int) -> n.ShardInfo | None:
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                return await self._network.request(n.DescribeShard(place), n.ShardInfo, again=False)
        except (TimeoutError, NotLeader, Unavailable):
            return None
        except Refused:
            raise
        except WeirError:
            return None


def _status(row: n.NodeRow, infos: list[n.ShardInfo]) -> NodeStatus:
    own = [info for info in infos if info.node == row.id]
    return NodeStatus(
        row.id,
        row.host,
        row.port,
        row.state,
        row.level,
        row.replicas,
        row.leaders,
        row.shards,
        len(own) >= max(row.shards, 1),
        sum(info.held for info in own),
        sum(info.led for info in own),
        sum(info.moving for info in own),
        sum(info.leaderless for info in own),
        sum(info.lagging.get(row.id, 0) for info in infos),
        row.leaving,
    )


class SystemTopology:
    """The topology of the system that a client is connected to."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `topology` this is."""
        self._network = network

    async def describe(self) -> TopologyState:
        """Return the topology and its version, which is 0 before any was applied."""
        return await self._network.request(DescribeTopology(), TopologyState)

    async def apply(self, topology: Topology, after: int) -> TopologyState:
        """Replace version `after` of the topology, and return the new one.

        Raises `TopologyChanged` where that is not the last version, `BadRequest` for a topology
        that does not fit, and `LevelTooLow`.
        """
        return await self._network.request(ApplyTopology(after, topology), TopologyState)

    async def describe_copies(self) -> CopyList:
        """Return which copies of groups the shard has that the client is connected to, and what is
        known there of core sets and promotions.

        Raises `Unavailable` where it does not answer within 5 s.
        """
        return await Promoter(self._network).copies()

    async def plan_promotion(
        self, brokerset: str, without: Collection[int] = (), *, wait: float = 0.0
    ) -> PromotionPlan:
        """Return what may be lost if a core set goes on alone, by its name or id, `without` some of
        its nodes. Nothing is changed. While nodes of other sets answer, as those do that have just
        been stopped, it is planned anew for up to `wait` seconds.

        Raises `BadRequest` for a set that cannot be promoted, and `Unavailable` where a node of it
        does not answer.
        """
        return await Promoter(self._network).plan(brokerset, without, wait=wait)

    async def promote(self, plan: PromotionPlan, *, forced: bool = False) -> list[tuple[str, int]]:
        """Let a set go on alone, whose home set is lost, and wait until all groups are led; return
        the topic and partition of those that are not after 60 s. It may be asked for again.

        Raises `Unavailable` while a node of the other set answers for 5 s, unless `forced`.
        """
        promoter = Promoter(self._network)
        await promoter.promote(plan, forced=forced)
        return await promoter.led(plan)

    async def describe_relay(self) -> RelayInfo:
        """Return how far the relay is that the client is connected to: of all its topics.

        Raises `BadRequest` where that is a node of a core set.
        """
        found = page = await self._network.request(DescribeRelay(), RelayInfo)
        while page.more and page.topics:
            after = DescribeRelay(page.topics[-1].name)
            page = await self._network.request(after, RelayInfo)
            found.topics.extend(page.topics)
        return msgspec.structs.replace(found, more=False)
