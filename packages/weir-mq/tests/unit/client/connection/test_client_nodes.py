"""A client of several nodes: it sends to leaders, follows them, and goes on without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from typing import Any, cast

import pytest

from rigs.clients import come_and_go, connection_to, know, pool_of
from rigs.consuming import take
from weir.client.client import connect
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.pool import redial_pause
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, Unavailable
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

Brokers = Callable[[], AbstractAsyncContextManager[Any]]
NOT_LEADER = 16
UNAVAILABLE = 17


class Set:
    """Nodes 1 to 3 of one shard each, that store into one log; one of them leads."""

    def __init__(self, brokers: list[Any], partitions: int) -> None:
        self.brokers = brokers
        self.leader = 1
        #: How many of the nodes are in the set.
        self.told = len(brokers)
        #: What nodes that do not lead say of it; None: they pass on.
        self.hint: Callable[[], int] | None = lambda: self.leader
        first = brokers[0]
        self.info = first.topic("t", partitions)
        for number, broker in enumerate(brokers, 1):
            for name in ("topics", "logs", "answers", "next_sequence", "starts", "news"):
                setattr(broker, name, getattr(first, name))
            broker.producers = 1_000 * number
            broker.answer = self._answers(number, broker, broker.answer)
            broker.script = self._script(number)

    def node(self, number: int) -> Any:
        return self.brokers[number - 1]

    def url(self, *numbers: int) -> str:
        return "weir://" + ",".join(f"127.0.0.1:{self.node(n).port}" for n in numbers)

    def _answers(
        self, number: int, broker: Any, plain: Callable[[m.Request], Awaitable[m.Reply]]
    ) -> Callable[[m.Request], Awaitable[m.Reply]]:
        async def answer(request: m.Request) -> m.Reply:
            if isinstance(request, m.Hello):
                nodes = tuple((n, "127.0.0.1", b.port) for n, b in enumerate(self.brokers, 1))
                return m.Welcome(77, 1, number, 0, 1 << 20, 64, nodes=nodes[: self.told])
            if isinstance(request, m.DescribeTopic):
                leader = self.leader
                addresses = [a._replace(node=leader) for a in self.info.addresses]
                return m.TopicInfo(self.info.id, "default", "t", "partition", addresses)
            return await plain(request)

        return answer

    def _script(self, number: int) -> Callable[[m.Request], m.Refusal | None]:
        def script(request: m.Request) -> m.Refusal | None:
            if not hasattr(request, "address") or number == self.leader or self.hint is None:
                return None
            return m.Refusal(NOT_LEADER, "led elsewhere", self.hint())

        return script

    def produced(self, number: int) -> int:
        return sum(isinstance(r, m.Produce) for r in self.node(number).seen)

    @property
    def values(self) -> list[bytes]:
        found: list[bytes] = self.node(1).values("t")
        return found


def of_three(
    fake_broker: Brokers, test: Callable[[Set], Awaitable[None]], partitions: int = 1
) -> None:
    """Run a test against three nodes."""

    async def body() -> None:
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(fake_broker()) for _ in range(3)]
            await test(Set(brokers, partitions))

    asyncio.run(asyncio.wait_for(body(), 30))


def test_what_another_node_leads_is_sent_there(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        nodes.leader = 2
        async with connect(nodes.url(1)) as client:
            for n in range(3):
                await client.publish("t", b"%d" % n)
            found = [message.value async for message in client.reader("t", follow=False)]
        assert found == [b"0", b"1", b"2"]
        assert [nodes.produced(n) for n in (1, 2, 3)] == [0, 3, 0]

    of_three(fake_broker, body)


def test_a_refusal_that_names_the_leader_is_followed_without_asking(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            nodes.leader = 3
            asked = len([r for r in nodes.node(1).seen if isinstance(r, m.DescribeTopic)])
            await client.publish("t", b"1")
            described = [r for r in nodes.node(1).seen if isinstance(r, m.DescribeTopic)]
            assert len(described) == asked
        assert nodes.values == [b"0", b"1"]
        assert [nodes.produced(n) for n in (1, 2, 3)] == [2, 0, 1]

    of_three(fake_broker, body)


def test_while_nobody_leads_it_is_asked_again_until_somebody_does(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            nodes.leader, nodes.hint = 0, lambda: 0
            sent = asyncio.ensure_future(client.publish("t", b"1"))
            while nodes.produced(1) < 4:
                await asyncio.sleep(0)
            assert not sent.done()
            nodes.leader = 2
            await sent
        assert nodes.values == [b"0", b"1"]

    of_three(fake_broker, body)


def test_why_a_node_refused_is_told_though_no_other_is_reached_after_it(
    fake_broker: Brokers,
) -> None:
    async def body(nodes: Set) -> None:
        asked = 0

        def lost(request: m.Request) -> m.Refusal | str | None:
            nonlocal asked
            if not isinstance(request, m.ListTopics):
                return None
            asked += 1
            if asked == 1:
                return m.Refusal(UNAVAILABLE, "half of the nodes are down", 0)
            for node in nodes.brokers:
                node.server.close()
            return "cut"

        nodes.node(1).script = lost
        async with connect(nodes.url(1), request_timeout=1.5) as client:
            with pytest.raises(Unavailable, match="half of the nodes are down"):
                await client.topics()

    of_three(fake_broker, body)


def test_a_window_of_batches_survives_its_leader_in_order_and_once(fake_broker: Brokers) -> None:
    """The leader dies with batches stored and not confirmed, and others not even stored."""

    async def body(nodes: Set) -> None:
        nodes.leader = 2
        async with (
            connect(nodes.url(1, 2, 3)) as client,
            client.producer("t", linger=0, window=8, batch_bytes=1) as producer,
        ):
            sent = [producer.send(b"%d" % n) for n in range(4)]
            await producer.flush()
            plain = nodes.node(2).script

            def dying(request: m.Request) -> m.Refusal | str | None:
                # Whatever comes from now on is stored, and who asked hears nothing.
                refusal: m.Refusal | None = plain(request)
                return refusal or ("cut after" if isinstance(request, m.Produce) else None)

            nodes.node(2).script = dying
            sent += [producer.send(b"%d" % n) for n in range(4, 12)]
            while nodes.produced(2) < 6:
                await asyncio.sleep(0)
            await nodes.node(2).stop()
            nodes.leader = 3
            await producer.flush()
            receipts = [await one for one in sent]
        assert nodes.values == [b"%d" % n for n in range(12)]
        assert [receipt.offset for receipt in receipts] == [*range(12)]

    of_three(fake_broker, body)


def test_a_client_that_was_given_one_node_goes_on_without_it(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            await nodes.node(1).stop()
            nodes.leader = 2
            await client.publish("t", b"1")
            assert client.welcome.node in (2, 3)
        assert nodes.values == [b"0", b"1"]

    of_three(fake_broker, body)


def test_a_reader_goes_on_at_its_offset_where_the_leader_moved(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        nodes.leader = 2
        async with connect(nodes.url(1)) as client, client.reader("t") as reader:
            found = []
            for n in range(6):
                await client.publish("t", b"%d" % n)
                found.append((await anext(reader)).value)
                if n == 2:
                    await nodes.node(2).stop()
                    nodes.leader = 3
                    nodes.node(2).cut()
        assert found == [b"%d" % n for n in range(6)]

    of_three(fake_broker, body)


def test_a_consumer_goes_on_where_the_leader_moved(fake_broker: Brokers) -> None:
    async def body(nodes: Set) -> None:
        nodes.leader = 2
        for broker in nodes.brokers[1:]:
            broker.acked, broker.granted = nodes.node(1).acked, nodes.node(1).granted
        async with connect(nodes.url(1)) as client:
            found = []
            async with client.consumer("t", cluster="c", max_messages=1) as consumer:
                for n in range(4):
                    await client.publish("t", b"%d" % n)
                    found.append((await take(consumer)).value)
                    if n == 1:
                        nodes.leader = 3
        assert found == [b"%d" % n for n in range(4)]

    of_three(fake_broker, body)


def test_a_leader_that_says_nothing_is_given_up_for_another(
    fake_broker: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still: its machine takes what is sent, and nobody there answers."""
    monkeypatch.setattr("weir.client.core.session.PROMPT_PING_AFTER", 0.05)
    monkeypatch.setattr("weir.client.core.session.PROMPT_DEAD_AFTER", 0.15)

    async def body(nodes: Set) -> None:
        nodes.leader = 2
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            plain = nodes.node(2).answer

            async def silent(request: m.Request) -> m.Reply:
                await asyncio.Event().wait()
                raise AssertionError

            nodes.node(2).answer = silent
            sent = asyncio.ensure_future(client.publish("t", b"1"))
            while nodes.produced(2) < 2:
                await asyncio.sleep(0)
            nodes.leader = 3
            await sent
            nodes.node(2).answer = plain
        assert nodes.values == [b"0", b"1"]

    of_three(fake_broker, body)


def stand_still(nodes: Set, number: int) -> asyncio.Event:
    """Let a node take requests and answer none of them; return what lets it answer again."""
    woken, plain = asyncio.Event(), nodes.node(number).answer

    async def later(request: m.Request) -> m.Reply:
        await woken.wait()
        reply: m.Reply = await plain(request)
        return reply

    nodes.node(number).answer = later
    return woken


def tell_leaders(nodes: Set, told: dict[int, tuple[int, int]]) -> list[int]:
    """Let nodes say which node leads in which term; return who was asked, as it grows."""
    asked: list[int] = []

    def answer(number: int, plain: Callable[[m.Request], Awaitable[m.Reply]]) -> Any:
        async def say(request: m.Request) -> m.Reply:
            if isinstance(request, a.AskLeader):
                asked.append(number)
                return a.LeaderInfo(*told[number], (1, 2, 3))
            return await plain(request)

        return say

    for number in told:
        nodes.node(number).answer = answer(number, nodes.node(number).answer)
        plain = nodes.node(number).script

        def script(request: m.Request, plain: Any = plain) -> m.Refusal | None:
            refused: m.Refusal | None = None if isinstance(request, a.AskLeader) else plain(request)
            return refused

        nodes.node(number).script = script
    return asked


def test_a_new_leader_is_found_while_the_old_one_stands_still_and_its_connection_stays(
    fake_broker: Brokers,
) -> None:
    async def body(nodes: Set) -> None:
        nodes.leader = 2
        told = {1: (2, 7), 3: (2, 7)}
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            asked = tell_leaders(nodes, told)
            woken = stand_still(nodes, 2)
            sent = asyncio.ensure_future(client.publish("t", b"1"))
            while len(asked) < 4:  # as long as nobody names another leader, it is waited for
                await asyncio.sleep(0.01)
            assert nodes.produced(3) == 0
            nodes.leader = 3
            told[1] = 1, 6  # of an older term
            told[3] = 3, 8
            began = asyncio.get_running_loop().time()
            await sent
            assert asyncio.get_running_loop().time() - began < 1.0
            assert nodes.produced(1) == 0, "an older leader was believed"
            way = connection_to(pool_of(client), 2, 0)
            old = way.connection
            assert old is not None
            assert old.writable
            woken.set()
            await client.publish("t", b"2")
            assert way.connection is old, "the old connection was given up"
        assert nodes.values == [b"0", b"1", b"2"]

    of_three(fake_broker, body)


def test_a_leader_that_is_slow_is_waited_for_while_nobody_names_another(
    fake_broker: Brokers,
) -> None:
    async def body(nodes: Set) -> None:
        nodes.leader = 2
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            asked = tell_leaders(nodes, {1: (2, 7), 3: (0, 8)})
            woken = stand_still(nodes, 2)
            sent = asyncio.ensure_future(client.publish("t", b"1"))
            while len(asked) < 6:
                await asyncio.sleep(0.01)
            woken.set()
            await sent
        assert [nodes.produced(n) for n in (1, 2, 3)] == [0, 2, 0]

    of_three(fake_broker, body)


def test_who_passes_on_is_left_for_the_leader_once_that_can_be_reached(
    fake_broker: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.client.producer.sender.LOOK_EVERY", 0.0)

    async def body(nodes: Set) -> None:
        nodes.hint, nodes.leader = None, 2
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            await nodes.node(2).stop()
            await client.publish("t", b"1")  # the first node passes on
            assert nodes.produced(1) == 1
            nodes.leader = 3
            n = 2
            while not nodes.produced(3):
                await client.publish("t", b"%d" % n)
                n += 1
        assert nodes.values == [b"%d" % i for i in range(n)]

    of_three(fake_broker, body)


def test_a_node_that_came_since_is_learnt_of_when_it_leads(
    fake_broker: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.client.producer.sender.LOOK_EVERY", 0.0)

    async def body(nodes: Set) -> None:
        nodes.told, nodes.hint = 2, None
        async with connect(nodes.url(1)) as client:
            await client.publish("t", b"0")
            nodes.told, nodes.leader, nodes.hint = 3, 3, lambda: 0
            n = 1
            while not nodes.produced(3):
                await client.publish("t", b"%d" % n)
                n += 1
            assert [node for node, _, _ in client.welcome.nodes] == [1, 2, 3]
        assert nodes.values == [b"%d" % i for i in range(n)]

    of_three(fake_broker, body)


def test_what_asks_for_no_partition_is_asked_again_where_the_registry_has_no_leader(
    fake_broker: Brokers,
) -> None:
    async def body(nodes: Set) -> None:
        refusals = iter([NOT_LEADER, UNAVAILABLE])

        def script(request: m.Request) -> m.Refusal | None:
            code = next(refusals, 0) if isinstance(request, m.CreateTopic) else 0
            return m.Refusal(code, "nobody leads") if code else None

        nodes.node(1).script = script
        async with connect(nodes.url(1)) as client:
            assert (await client.create_topic("t")).name == "t"

    of_three(fake_broker, body)


def test_a_producer_goes_on_where_what_was_only_received_is_lost(fake_broker: Brokers) -> None:
    """Counterexample 19: the next leader's log ends before what the old one had confirmed."""

    async def body(nodes: Set) -> None:
        confirmed = []
        async with (
            connect(nodes.url(1)) as client,
            client.producer(
                "t", linger=0, window=4, batch_bytes=1, ack="received", on_confirm=confirmed.append
            ) as producer,
        ):
            receipts = [await producer.send(b"%d" % n) for n in range(3)]
            group = nodes.info.addresses[0].group
            (known,) = nodes.node(1).next_sequence
            nodes.node(1).next_sequence[known] = 1
            nodes.node(1).answers[known] = {0: nodes.node(1).answers[known][0]}
            del nodes.node(1).logs[group][1:]
            nodes.leader = 2
            receipts += [await producer.send(b"%d" % n) for n in range(3, 6)]
        assert nodes.values == [b"0", b"3", b"4", b"5"]
        last = nodes.node(1).logs[group][-1].header
        assert (last.producer, last.epoch) == (known[1], 1), "it ends what is still on its way"
        assert [receipt.offset for receipt in receipts] == [-1] * 6
        assert sum(one.count for one in confirmed) == 6

    of_three(fake_broker, body)


@pytest.mark.parametrize("what", ["a partition", "the registry"])
def test_a_node_that_never_learns_of_a_leader_is_left(fake_broker: Brokers, what: str) -> None:
    """It is cut off from the others, and clients reach it all the same."""

    async def body(nodes: Set) -> None:
        nodes.leader = 1
        async with connect(nodes.url(1, 2)) as client:
            await client.publish("t", b"0")

            def cut_off(request: m.Request) -> m.Refusal | None:
                asks = hasattr(request, "address") or isinstance(request, m.CreateTopic)
                return m.Refusal(NOT_LEADER, "nobody leads") if asks else None

            plain = nodes.node(1).answer

            async def stale(request: m.Request) -> m.Reply:
                nodes.leader = 1 if isinstance(request, m.DescribeTopic) else 2
                try:
                    return await plain(request)
                finally:
                    nodes.leader = 2

            nodes.leader = 2
            nodes.node(1).script, nodes.node(1).answer = cut_off, stale
            if what == "a partition":
                await client.publish("t", b"1")
                assert nodes.values == [b"0", b"1"]
            else:
                await client.create_topic("t")
            assert client.welcome.node == 2

    of_three(fake_broker, body)


def test_a_named_leader_of_several_shards_is_asked_by_the_shard_of_the_log() -> None:
    from weir.client.connection.connection import Senders
    from weir.client.connection.pool import ConnectionPool, Node

    pool = ConnectionPool(cast(Any, None), Senders())
    know(pool, {2: Node(2, "host", 6800, (1, 2, 3))})
    assert pool.led_by(Address(0, 7, 9, 1), 2) == Address(1, 7, 9, 2)
    assert pool.led_by(Address(0, 7, 9, 1), 5) == Address(0, 7, 9, 5)


def test_a_client_of_several_nodes_tries_all_of_them_again_within_seconds() -> None:
    retry = Backoff()
    for places in (2, 3, 5):
        for round_ in range(20):
            first = round_ * places + 1
            waits = [redial_pause(retry, first + n, places, 1.0) for n in range(places)]
            assert max(waits[:-1]) <= 0.25
            assert sum(waits) <= 0.25 * (places - 1) + 1.0
    grown = [redial_pause(retry, attempt, 3, 1.0) for attempt in (1, 4, 7, 10, 300)]
    assert grown == sorted(grown)
    assert redial_pause(retry, 3 * 20, 3, 1.0) > redial_pause(retry, 3, 3, 1.0), "no backoff"


def test_a_client_of_one_node_waits_as_long_as_it_is_told() -> None:
    retry = Backoff()
    assert [redial_pause(retry, n, 1, 1.0) for n in (1, 2, 30)] == [0.05, 0.1, 5.0]


def test_a_node_that_knows_of_no_others_yet_makes_nobody_wait_longer() -> None:
    async def body() -> None:
        places = [("127.0.0.1", 1), ("127.0.0.1", 2)]
        network = NetworkClient(
            places, name="", retry=Backoff(jitter=0), request_timeout=1.0, random=Random(1)
        )
        network.home.welcome = m.Welcome(77, 1, 1, 0, 1 << 20, 64)
        assert network.pause(20, Unavailable("no registry")) <= 0.25

    asyncio.run(body())


def test_who_waits_for_a_connection_that_is_gone_at_once_waits_for_the_next() -> None:
    async def scenario() -> None:
        network = NetworkClient(
            [], name="", retry=Backoff(), request_timeout=0.05, random=Random(1)
        )
        asked = asyncio.ensure_future(network.request(m.Ping(), m.Pong))
        await asyncio.sleep(0)
        come_and_go(network.home)
        with pytest.raises(Disconnected, match="no connection"):
            await asked

    asyncio.run(scenario())
