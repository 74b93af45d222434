"""What happens once a majority is back: the leader of each partition, and when all confirm.

Two of three nodes are killed and started again. A message is published to each partition meanwhile.
From the moment at which the first of them serves, the nodes are asked again and again for the
leaders.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from weir.client.client import Client, connect
from weir.client.connection.connection import Connection, Senders
from weir.errors import WeirError
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.testing.nodes import NodeSet, Patient

TOPIC = "regain"
_SETTLED_WITHIN_S = 60.0
_ASK_EVERY_S = 0.1
_ANSWER_S = 1.0
_REQUEST_S = 30.0
_LOOK_S = 0.05
#: Below the time after which leaderships go back to the nodes that are meant for them.
_WATCH_S = 4.0


class Regained(msgspec.Struct, frozen=True):
    """One round: milliseconds from the first returned node's start of service until a message was
    confirmed by every partition, and how often partitions got a leader in a new term since then.
    """

    number: int
    killed: list[int]
    confirmed_ms: float
    #: Of the partition that changed its leader most often; and of all together.
    changes_most: int
    changes: int


class Regain(msgspec.Struct, frozen=True):
    """All rounds. `well`: those in which each partition changed its leader at most once, and all
    confirmed within 2 s.
    """

    rounds: int
    partitions: int
    well: int
    confirmed_median_ms: float
    confirmed_max_ms: float
    changes_most: int
    seconds: float
    each: list[Regained]


#: What a round may take to be counted as one that went well.
WELL_MS, WELL_CHANGES = 2_000.0, 1


async def run(
    nodes: NodeSet, times: int, partitions: int, down_s: float,
    tell: Callable[[Regained], None],
) -> Regain:  # fmt: skip
    """Kill and start two of a running set of three again and again. Raises `WeirError`."""
    began = time.monotonic()
    rounds: list[Regained] = []
    async with connect(nodes.url, name="weir-chaos", request_timeout=_REQUEST_S) as client:
        info = await client.create_topic(TOPIC, partitions)
        for number in range(1, times + 1):
            await _settled(client)
            rounds.append(await _round(nodes, client, info.addresses, number, down_s))
            tell(rounds[-1])
    took = [one.confirmed_ms for one in rounds]
    return Regain(
        rounds=len(rounds),
        partitions=partitions,
        well=sum(
            one.confirmed_ms <= WELL_MS and one.changes_most <= WELL_CHANGES for one in rounds
        ),
        confirmed_median_ms=statistics.median(took),
        confirmed_max_ms=max(took),
        changes_most=max(one.changes_most for one in rounds),
        seconds=time.monotonic() - began,
        each=rounds,
    )


async def _round(
    nodes: NodeSet, client: Client, addresses: Sequence[Address], number: int, down_s: float
) -> Regained:  # fmt: skip
    count = len(nodes.members)
    left = number % count + 1
    killed = [one.node for one in nodes.members if one.node != left]
    await asyncio.to_thread(nodes.kill, killed)
    await asyncio.sleep(down_s)
    watches = [_Watch(one.node, (one.host, one.port), addresses) for one in nodes.members]
    before = await watches[left - 1].look()
    nodes.start_again(killed)
    publishing = asyncio.ensure_future(_publish(client, number, len(addresses)))
    await _first(nodes, killed)
    at = time.monotonic()
    looking = [asyncio.ensure_future(watch.run(at + _WATCH_S)) for watch in watches]
    try:
        confirmed_ms = max(0.0, (await publishing - at) * 1e3)
        await asyncio.gather(*looking)
        await asyncio.to_thread(nodes.wait, killed, Patient())
    finally:
        for task in (publishing, *looking):
            task.cancel()
        await asyncio.gather(publishing, *looking, return_exceptions=True)
        for watch in watches:
            watch.close()
    terms: dict[int, set[int]] = {address.group: set() for address in addresses}
    for watch in watches:
        for group, term in watch.led:
            if term > before.get(group, 0):
                terms[group].add(term)
    changes = [len(found) for found in terms.values()]
    return Regained(number, killed, confirmed_ms, max(changes), sum(changes))


async def _publish(client: Client, number: int, partitions: int) -> float:
    """Publish to all partitions; return when the last of these messages was confirmed."""
    async with client.producer(TOPIC, linger=0) as producer:
        for sent in [producer.send(b"%d" % number, partition=p) for p in range(partitions)]:
            await sent
        return time.monotonic()


async def _first(nodes: NodeSet, numbers: Sequence[int]) -> None:
    """Return once one of these nodes serves."""
    waits = [asyncio.ensure_future(asyncio.to_thread(nodes.wait, [n], Patient())) for n in numbers]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()
    # The others are waited for later: whatever they say, they say it then.
    for one in waits:
        one.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


async def _settled(client: Client) -> None:
    """Return once every node is up and every group is where it should be."""
    until = time.monotonic() + _SETTLED_WITHIN_S
    while time.monotonic() < until:
        with suppress(WeirError, TimeoutError):
            if (await client.nodes.status()).settled:
                return
        await asyncio.sleep(_LOOK_S)
    raise WeirError(f"the set is not settled after {_SETTLED_WITHIN_S:g} s")


class _Watch:
    """Asks one node for the leader of each partition."""

    def __init__(self, node: int, place: tuple[str, int], addresses: Sequence[Address]) -> None:
        #: Groups and terms in which the node named a leader.
        self.led: set[tuple[int, int]] = set()
        self._node = node
        self._place = place
        self._addresses = addresses
        self._connection: Connection | None = None

    async def run(self, until: float) -> None:
        """Ask until a time."""
        while time.monotonic() < until:
            await self.look()
            await asyncio.sleep(_ASK_EVERY_S)

    async def look(self) -> dict[int, int]:
        """Ask once; return the term of each group as far as the node answers."""
        terms: dict[int, int] = {}
        try:
            connection = await self._connected()
            asked = [a.AskLeader(at._replace(node=self._node)) for at in self._addresses]
            replies = await asyncio.gather(*(connection.request(one, _ANSWER_S) for one in asked))
        except (OSError, WeirError, TimeoutError):
            self.close()
            return terms
        for address, told in zip(self._addresses, replies, strict=True):
            if isinstance(told, a.LeaderInfo):
                terms[address.group] = told.term
                if told.node:
                    self.led.add((address.group, told.term))
        return terms

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _connected(self) -> Connection:
        if self._connection is None:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(_ANSWER_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(Senders()), *self._place
                )
            self._connection = connection
            await connection.request(m.Hello("weir-chaos-watch"), _ANSWER_S)
        return self._connection
