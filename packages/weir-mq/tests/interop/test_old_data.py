"""Folders of nodes and an inbox that an earlier release wrote are opened by this one, and go on.

`scripts/write-old-data` wrote them; tests/spark/test_old_checkpoint.py opens the Spark checkpoint.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import weir
from rigs.consuming import take
from weir import device, sync
from weir.errors import Fenced
from weir.model.batch_builder import encode
from weir.protocol.client import messages as m
from weir.protocol.device import ALL_PARTITIONS
from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node, NodeSet, Patient, start_node

HUB = 7
DUPLICATE = (1 << 64) - 1
#: How long those messages are held back or delayed that nobody gets yet.
LATER_SECONDS = 300 * 24 * 3600
#: So long nothing more comes.
_SILENCE = 0.5
_WITHIN = 20.0
_FREE_WITHIN = 120.0
Place = tuple[int, int]


def beside() -> ModuleType:
    path = Path(__file__).parents[1] / "data" / "old_data.py"
    spec = util.spec_from_file_location("old_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


old = beside()


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    found: dict[str, Any] = old.manifest()
    return found


def opened(folder: Path) -> Node:
    """Start a node on what is archived of one, which an inbox lies beside."""
    old.unpack(folder, "node", "inbox.db")
    return start_node(folder / "node", folder, **old.SETTINGS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of all tests that leave alone what later ones read: each has its topics, clusters or
    devices.
    """
    with opened(tmp_path_factory.mktemp("old")) as node:
        yield node


@pytest.fixture
def w(node: Node) -> Iterator[sync.Client]:
    with sync.connect(node.url) as client:
        yield client


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Node]:
    """A node of one test."""
    with opened(tmp_path) as node:
        yield node


@pytest.fixture
def own_w(own_node: Node) -> Iterator[sync.Client]:
    with sync.connect(own_node.url) as client:
        yield client


def places(rows: list[list[Any]]) -> list[Place]:
    return [(row[0], row[1]) for row in rows]


def later_is_over(told: dict[str, Any]) -> bool:
    return time.time() > told["written"] + LATER_SECONDS - 3_600


def test_every_topic_message_cluster_and_device_is_there(
    w: sync.Client, told: dict[str, Any]
) -> None:
    then = told["node"]
    assert {info.full_name for info in w.topics()} == {*then["topics"]}
    for topic, was in then["topics"].items():
        info = w.describe(topic)
        assert len(info.addresses) == was["partitions"]
        assert info.order == was["order"]
        assert [partition for partition, _ in info.ends] == was["ended"]
        retention_ms, retention_bytes, together, until_done = was["settings"]
        assert info.settings.retention_ms == retention_ms
        assert info.settings.retention_bytes == retention_bytes
        assert [*info.settings.scatter_with] == together
        assert [*info.settings.until_done] == until_done
        assert old.seen(w, topic) == then["seen"][topic]
        assert old.progress(w, topic) == then["progress"][topic]
        before = [{**one, "generation": 0} for one in then["devices"].get(topic, [])]
        assert old.devices(w, topic) == before  # nobody was replaced in that release
    assert old.in_order(w, "moves") == then["order"]["moves"]
    of_one = {row[2] for row in old.seen(w, "accounts")[:2] + old.seen(w, "invoices")[:1]}
    assert len(of_one) == 1, "a scattering has one stamp"


def test_a_node_keeps_its_files_under_their_names(
    own_node: Node, tmp_path: Path, told: dict[str, Any]
) -> None:
    own_node.stop()
    assert old.files(tmp_path / "node") == told["node"]["files"]


def test_publishes_go_on_behind_what_is_there(own_w: sync.Client, told: dict[str, Any]) -> None:
    then = told["node"]
    for topic, rows in then["seen"].items():
        ends = own_w.positions(topic)[1]
        receipt = own_w.publish(topic, b"new", partition=0)
        assert receipt.offset == ends[0]
        assert receipt.stamp > max((row[2] for row in rows), default=0)
        now = old.seen(own_w, topic)
        assert [row for row in now if row[:2] != [0, ends[0]]] == rows
        assert len(now) == len(rows) + 1
    with own_w.scatter() as s:
        s.publish("accounts", b"-9", partition=0)
        s.publish("invoices", b"paid 9")
    assert s.receipts[0].stamp == s.receipts[1].stamp
    assert old.in_order(own_w, "moves")[:-1] == then["order"]["moves"]


def test_a_producer_is_known_again(node: Node, told: dict[str, Any]) -> None:
    """What it sends again is a duplicate, its next batch is new, its next epoch fences it."""
    raw = told["node"]["raw"]
    with BlockingClient(node.host, node.port) as client:
        (address,) = client.describe("raw").addresses

        def send(batch: bytes) -> m.Confirm:
            reply = client.request(m.Produce(address, 0, memoryview(batch)))
            assert isinstance(reply, m.Confirm)
            return reply

        def batch(sequence: int) -> bytes:
            return bytes(
                encode(
                    [b"raw %d" % sequence],
                    group=address.group,
                    producer=raw["producer"],
                    epoch=raw["epoch"],
                    sequence=sequence,
                )
            )

        for sent, offset in zip(raw["batches"], raw["offsets"], strict=True):
            again = send(bytes.fromhex(sent))
            assert (again.duplicate, again.offset) == (True, offset)
        new = send(batch(len(raw["batches"])))
        assert (new.duplicate, new.offset) == (False, raw["offsets"][-1] + 1)
        grant = client.request(m.OpenProducer(raw["producer"]))
        assert isinstance(grant, m.ProducerGrant)
        assert grant.epoch == raw["epoch"] + 1


async def drained(url: str, name: str, mode: str, count: int) -> list[tuple[Place, int]]:
    """Consume and ack so many messages, each with its attempts; nothing more must come."""
    topic, _, cluster = name.rpartition(":")
    found = []
    async with (
        weir.connect(url) as client,
        client.consumer(topic, cluster=cluster, mode=mode) as consumer,
    ):
        for _ in range(count):
            async with asyncio.timeout(_WITHIN):
                message = await take(consumer)
            found.append(((message.partition, message.offset), message.attempts))
        await consumer.flush()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), _SILENCE)
    return found


def left_of(told: dict[str, Any], name: str) -> tuple[list[Place], set[Place]]:
    """What a cluster still is to get, in order, and what of that it is to get later."""
    then = told["node"]
    topic, _, cluster = name.rpartition(":")
    rows, done, back = then["seen"][topic], places(then["done"][name]), places(then["back"][name])
    later = set()
    if cluster in ("shared", "keyed-later"):
        later = {*back}
    if cluster == "keyed-later":  # what failed holds its key back
        keys = {(row[0], row[4]) for row in rows if (row[0], row[1]) in later}
        later |= {(row[0], row[1]) for row in rows if (row[0], row[4]) in keys} - {*done}
    if name == "reminders:mail":
        later = {(row[0], row[1]) for row in rows if row[7] == "in 300 days"}
        done = [*done, *((row[0], row[1]) for row in rows if row[7] == "expired")]
    left = [place for place in places(rows) if place not in done]
    if then["progress"][topic][cluster]["order"] == "total":
        left = [place for place in places(then["order"][topic]) if place not in done]
    return left, later


CLUSTERS = [
    "doors:shared",
    "doors:again",
    "doors:keyed",
    "doors:keyed-later",
    "doors:ordered",
    "doors:tellers",
    "moves:moves",
    "moves:shared",
    "reminders:mail",
]


def test_each_cluster_gets_what_it_has_not_acked(
    node: Node, w: sync.Client, told: dict[str, Any]
) -> None:
    for name in CLUSTERS:
        topic, _, cluster = name.rpartition(":")
        left, later = left_of(told, name)
        expected = left if later_is_over(told) else [one for one in left if one not in later]
        mode = told["node"]["progress"][topic][cluster]["shares"][0]["mode"]
        found = asyncio.run(drained(node.url, name, mode, len(expected)))
        got = [place for place, _ in found]
        if cluster == "moves":
            assert got == expected
        assert sorted(got) == sorted(expected), name
        if mode != "shared":
            rows = told["node"]["seen"][topic]
            line = {(row[0], row[1]): (row[0], row[4] if mode == "keyed" else "") for row in rows}
            for one, place in enumerate(got):
                before = [other for other in got[:one] if line[other] == line[place]]
                assert all(other < place for other in before), f"{name}: {place} comes too late"
        attempts = dict(found)
        for back in places(told["node"]["back"][name]):
            assert attempts.get(back, 2) >= 2, f"{name}: {back} was tried before"
        (now,) = w.clusters(topic, cluster)
        assert now.lag == len(left) - len(expected), name


def test_what_is_held_back_or_delayed_is_counted(w: sync.Client, told: dict[str, Any]) -> None:
    if later_is_over(told):
        return  # it is due
    counts = {name: w.clusters(*name.split(":"))[0].held_back for name in CLUSTERS}
    assert counts["doors:shared"] == 1
    assert counts["doors:keyed-later"] == 1


def test_a_paused_cluster_gets_nothing_until_it_is_resumed(
    node: Node, w: sync.Client, told: dict[str, Any]
) -> None:
    name = "plant/doors:paused"
    assert asyncio.run(drained(node.url, name, "shared", 0)) == []
    w.resume_cluster("plant/doors", "paused")
    left, _ = left_of(told, name)
    found = asyncio.run(drained(node.url, name, "shared", len(left)))
    assert sorted(place for place, _ in found) == left


def test_a_cluster_that_was_only_sought_begins_there(node: Node, told: dict[str, Any]) -> None:
    expected = [place for place in places(told["node"]["seen"]["doors"]) if place >= (0, 2)]
    found = asyncio.run(drained(node.url, "doors:sought", "shared", len(expected)))
    assert sorted(place for place, _ in found) == expected


def test_a_hub_goes_on_with_its_sequences(node: Node, told: dict[str, Any]) -> None:
    then = {one["sn"]: one for one in told["node"]["devices"]["doors"]}
    values = [b"again 0, 0", b"again 0, 1", b"again 0, 2", b"later 0, 3"]
    assert then[0]["next_sequence"] == len(values)
    with device.Client(node.host, node.port, hub=HUB, boot=2, topic="doors") as hub:
        confirms = hub.send_many([*values, b"new"], sn=0)
        assert [reply.offset for reply in confirms[:-1]] == [DUPLICATE] * len(values)
        assert confirms[-1].offset > then[0]["offset"]
        assert hub.publish_sequenced(b"lock 1, 0", sn=1).offset == DUPLICATE
        expected, _ = left_of(told, "doors:hubs")
        member = hub.subscribe("hubs", "doors", sn=1, partition=ALL_PARTITIONS)
        found = []
        while len(found) < len(expected) + 1:  # the new one, too
            (message,) = member.take(_WITHIN, 1)
            member.ack([message])
            found.append((message.partition, message.offset))
        assert {*expected} < {*found}
    with (
        pytest.raises(Fenced),
        device.Client(node.host, node.port, hub=HUB, boot=1, topic="doors") as hub,
    ):
        hub.publish_sequenced(b"of an earlier boot", sn=0)


def test_dead_letters_go_back_to_where_they_came_from(
    w: sync.Client, node: Node, told: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from weir.cli.main import main

    dead = told["node"]["seen"]["unlocks.dead"]
    words = ["cluster", "redrive", "ledger", "--topic", "unlocks.dead", "--url", node.url]
    assert main(words) == 0, capsys.readouterr()
    then = told["node"]["seen"]["unlocks"]
    new = [row[7] for row in old.seen(w, "unlocks") if row not in then]
    assert sorted(new) == sorted(row[7] for row in dead)


def test_the_inbox_knows_what_it_recorded_and_records_what_is_new(
    own_node: Node, own_w: sync.Client, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'inbox.db'}")
    inbox = weir.Inbox("ledger")
    inbox.create(engine)
    app = weir.App(own_node.url)
    asked: list[tuple[str, bool]] = []

    @app.subscribe("unlocks", cluster="ledger", inbox=inbox, concurrency=1)
    def record(message: weir.Message) -> None:
        value = message.value.decode()
        with engine.begin() as connection, inbox.once(connection, message) as fresh:
            asked.append((value, fresh))
            if fresh:
                connection.execute(text("insert into effects values (:value)"), {"value": value})

    async def play() -> None:
        async with weir.connect(own_node.url) as client, app.running(), asyncio.timeout(_WITHIN):
            while any(one.lag for one in await client.clusters("unlocks", "ledger")):
                await asyncio.sleep(0.05)

    own_w.seek_cluster("unlocks", "ledger", "earliest")
    for number in range(4):
        own_w.publish("unlocks", f"new {number}", key=f"new {number}")
    asyncio.run(play())
    with engine.connect() as connection:
        effects = [*connection.execute(text("select value from effects")).scalars()]
    engine.dispose()
    opened = ["open 1", "open 3", "open 4", "open 6"]
    new = [f"new {number}" for number in range(4)]
    assert sorted(effects) == sorted([*opened, *new]), "each has its effect once"
    assert sorted(asked) == sorted(
        [(value, False) for value in opened]
        # All below the floor of their partition is done, as dead letters are, too.
        + [(value, False) for value in ("bad 2", "bad 5")]
        + [(value, True) for value in new]
    )


def wait_until_free(members: list[list[Any]]) -> None:
    """Wait until nobody listens where a set has its nodes, as this test elsewhere may."""
    until = time.monotonic() + _FREE_WITHIN
    for host, port in members:
        while True:
            try:
                socket.create_server((host, port)).close()
                break
            except OSError:
                assert time.monotonic() < until, f"somebody listens on {host}:{port}"
                time.sleep(0.2)


def test_three_nodes_elect_leaders_and_serve(tmp_path: Path, told: dict[str, Any]) -> None:
    then = told["set"]
    old.unpack(tmp_path, "set")
    wait_until_free(then["members"])
    nodes = NodeSet(tmp_path / "set", 3, 1)
    assert [[one.host, one.port] for one in nodes.members] == then["members"]
    try:
        nodes.start(Patient())
        with sync.connect(nodes.url) as w:
            for topic in ("doors", "moves"):
                assert old.seen(w, topic) == then["seen"][topic]
                assert old.progress(w, topic) == then["progress"][topic]
            assert old.in_order(w, "moves") == then["order"]["moves"]
            done = places(then["done"]["doors:crew"])
            left = [one for one in places(then["seen"]["doors"]) if one not in done]
            found = asyncio.run(drained(nodes.url, "doors:crew", "shared", len(left)))
            assert sorted(place for place, _ in found) == left
            for number in range(10):
                w.publish("doors", f"new {number}", key=f"key {number}")
            nodes.node(1).stop()  # two of them are enough
            for number in range(10, 20):
                w.publish("doors", f"new {number}", key=f"key {number}")
            values = [row[7] for row in old.seen(w, "doors")]
            assert sorted(value for value in values if value.startswith("new")) == sorted(
                f"new {number}" for number in range(20)
            )
            assert len(values) == len(then["seen"]["doors"]) + 20
    finally:
        nodes.stop()
