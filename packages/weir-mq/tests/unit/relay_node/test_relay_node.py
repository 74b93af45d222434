"""A relay of a node in memory, over real sockets: what its clients get, and what they do not."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from rigs.relay_nodes import (
    fill,
    frame,
    known,
    make_small,
    play,
    relay,
    rows,
    spoken,
    until_known,
    why_refused,
)
from weir.client.arguments import parse_url
from weir.client.client import connect
from weir.client.connection import system
from weir.client.connection.network_client import NetworkClient
from weir.errors import (
    BadRequest,
    Disconnected,
    NotAuthenticated,
    OffsetOutOfRange,
    RemoteProtocolError,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.protocol.client import messages as m
from weir.relay.messages import AskFilter, decode_message, encode_message
from weir.relay_node import host as hosting
from weir.relay_node.disk import RelayDisk
from weir.relay_node.folder import RelayFolder
from weir.relay_node.host import RelayConfig
from weir.relay_node.serve import run
from weir.storage.errors import LogDamaged
from weir.testing.memory_node import Node, node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture
def core() -> Iterator[Node]:
    with node() as found:
        yield found


def test_readers_get_what_the_core_has(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core)
        async with relay(core, tmp_path) as url:
            await until_known(url, 30)
            for options in (
                {}, {"order": "partition"}, {"tag": "b"}, {"start": "-1h"}, {"start": {0: 3, 1: 4}},
                {"order": "partition", "start": weir.last(2)},
            ):  # fmt: skip
                options = {"start": "earliest", "follow": False, **options}
                truth = await rows(core.url, **options)
                assert truth
                if options.get("order") == "partition":
                    assert sorted(await rows(url, **options)) == sorted(truth)
                else:
                    assert await rows(url, **options) == truth

    play(work)


def test_a_relay_whose_folder_is_lost_pulls_everything_again(core: Node, tmp_path: Path) -> None:
    options = {"start": "earliest", "follow": False}

    async def work() -> None:
        await fill(core, 9)
        async with relay(core, tmp_path / "lost", node=5) as url:
            await until_known(url, 9)
            await asyncio.sleep(0.3)
            await fill(core, 6, 9)  # the pulls behind it tell the core what is durable by then
            await until_known(url, 15)
        async with relay(core, tmp_path / "new", node=5) as url:
            await until_known(url, 15)
            assert await rows(url, **options) == await rows(core.url, **options)

    play(work)


def test_what_comes_is_passed_on_to_who_follows(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
            async with connect(url) as client, client.reader("t", start="earliest") as reader:
                found = [bytes((await anext(reader)).value) for _ in range(3)]
                await fill(core, 5, 3)
                found += [bytes((await anext(reader)).value) for _ in range(5)]
                assert found == [b"%d" % number for number in range(8)]

    play(work)


def test_writes_are_refused_with_the_core_s_address(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url, connect(url) as client:
            await known(client, end=3)
            with pytest.raises(BadRequest, match=f"connect to {core.url}"):
                await client.publish("t", b"x")
            with pytest.raises(BadRequest, match="takes no writes"):
                await client.create_topic("other")

    play(work)


def test_a_relay_of_some_tags_and_topics_serves_these_alone(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core)
        await fill(core, 3, topic="other")
        tags, topics = frozenset({"b", ""}), frozenset({"default/t"})
        async with relay(core, tmp_path, tags=tags, topics=topics) as url:
            await until_known(url, 30)
            for tag in ("b", ""):
                options = {"start": "earliest", "follow": False, "tag": tag}
                assert await rows(url, **options) == await rows(core.url, **options)
            with pytest.raises(BadRequest, match="keeps the tags '', 'b'"):
                await rows(url, start="earliest", follow=False, order="partition")
            async with connect(url) as client:
                assert [one.full_name for one in await client.topics()] == ["t"]
                with pytest.raises(UnknownTopic, match="is relayed here"):
                    await client.describe("other")

    play(work)


def test_a_topic_that_is_not_asked_for_any_more_goes(core: Node, tmp_path: Path) -> None:
    options = {"start": "earliest", "follow": False}

    async def work() -> None:
        await fill(core, 3)
        await fill(core, 3, topic="other")
        async with relay(core, tmp_path) as url, connect(url) as client:
            await known(client, "t", end=3)
            await known(client, "other", end=3)
        for _ in range(2):
            topics = frozenset({"default/other"})
            async with relay(core, tmp_path, topics=topics) as url, connect(url) as client:
                assert [one.full_name for one in await client.topics()] == ["other"]
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
            assert await rows(url, **options) == await rows(core.url, **options)

    play(work)


def test_a_relay_serves_while_the_core_is_away_and_goes_on_behind_it(
    core: Node, tmp_path: Path
) -> None:
    options = {"start": "earliest", "follow": False, "order": "partition"}

    async def work() -> None:
        await fill(core)
        async with relay(core, tmp_path) as url:
            await until_known(url, 30)
        await asyncio.to_thread(core.crash)
        async with relay(core, tmp_path) as url:
            assert len(await rows(url, **options)) == 30
            async with connect(url) as client:
                address = (await client.describe("t")).addresses[0]
            # What the core had given out before is not said to be beyond its end.
            ahead = frame(m.Fetch(address, 1_000, 1 << 20, wait_ms=50, equal_stamps=True))
            _, nothing = await spoken(url, frame(m.Hello("test")), ahead)
            assert isinstance(nothing, m.Fetched)
            assert (nothing.next_offset, nothing.batches) == (1_000, ())
            await asyncio.to_thread(core.restart)
            await fill(core, 6, 30)
            await until_known(url, 36)
            assert sorted(await rows(url, **options)) == sorted(await rows(core.url, **options))
            async with connect(url) as client:
                beyond = client.reader("t", partitions=[0], start={0: 1_000})
                with pytest.raises(OffsetOutOfRange, match="offset 1000 is not there: this part"):
                    await asyncio.wait_for(anext(beyond), 60)

    play(work)


def test_a_topic_that_is_deleted_is_gone_from_the_relay(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url, connect(url) as client:
            await known(client, end=3)
            async with connect(core.url) as there:
                await there.delete_topic("t")
            while await client.topics():
                await asyncio.sleep(0.02)
            await fill(core, 4)
            await known(client, end=4)
            options = {"start": "earliest", "follow": False}
            assert await rows(url, **options) == await rows(core.url, **options)

    play(work)


def test_topics_are_written_down_one_at_a_time_and_again_where_that_failed(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, busy, keep = ("t", "u", "v"), list[bool](), RelayFolder.keep_topics

    def slow(folder: RelayFolder, topics: list[m.TopicInfo]) -> None:
        assert not any(busy), "the folder is written to already"
        busy.append(True)
        time.sleep(0.03)
        busy[-1] = False
        if len(busy) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        keep(folder, topics)

    async def work() -> None:
        for name in names:
            await fill(core, 2, topic=name)
        async with relay(core, tmp_path) as url, connect(url) as client:
            for name in names:
                await known(client, name, end=2)
            monkeypatch.setattr(RelayFolder, "keep_topics", slow)
            async with connect(core.url) as there:
                await asyncio.gather(*(there.delete_topic(name) for name in names))
            while len(busy) < 3 or (tmp_path / "topics.json").read_text() != "[]":
                await asyncio.sleep(0.02)
            assert await client.topics() == []

    play(work)


def test_large_values_are_read_from_the_relay(core: Node, tmp_path: Path) -> None:
    value = bytes(range(256)) * 5_000

    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic("t", partitions=1)
            await client.publish("t", b"before")
            await client.publish("t", value)
        async with relay(core, tmp_path) as url:
            await until_known(url, 2)
            found = await rows(url, start="earliest", follow=False)
            assert [row[3] for row in found] == [b"before", value]

    play(work)


def test_what_is_damaged_on_the_disk_is_pulled_again(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"start": "earliest", "follow": False}

    async def damaged(*_: object) -> None:
        raise LogDamaged(0, "one", 8, "it rotted")

    async def work() -> None:
        await fill(core, 9)
        async with relay(core, tmp_path) as url:
            await until_known(url, 9)
            async with connect(url) as client:
                addresses = (await client.describe("t")).addresses
            fetches = [frame(m.Fetch(one, 0, 1 << 20, equal_stamps=True)) for one in addresses]
            with monkeypatch.context() as rot:
                rot.setattr(RelayDisk, "entries", damaged)
                _, *told = await spoken(url, frame(m.Hello("test")), *fetches)
            refused = [one.message for one in told if isinstance(one, m.Refusal)]
            assert refused
            assert all("again: ask again" in one for one in refused), refused
            await until_known(url, 9)
            assert await rows(url, **options) == await rows(core.url, **options)

    play(work)


def test_what_the_core_allows_no_more_is_served_no_more(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url, connect(url) as client:
            await known(client, end=3)
            with monkeypatch.context() as closed:

                async def refuse(*_: object, **__: object) -> None:
                    raise Unauthorized("you may not read t")

                closed.setattr(hosting.Places, "ask", refuse)
                while (told := await why_refused(client)) is None:
                    await asyncio.sleep(0.02)
                assert "you may not read t" in told
            while await why_refused(client) is not None:
                await asyncio.sleep(0.02)

    play(work)


def test_a_relay_of_a_core_that_was_closed_meanwhile_serves_nothing(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(NetworkClient):
        async def start(self) -> None:
            raise NotAuthenticated("this set is closed: log in")

    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
        with monkeypatch.context() as closed:
            closed.setattr(hosting, "NetworkClient", Refused)
            async with relay(core, tmp_path) as url, connect(url) as client:
                while (told := await why_refused(client)) is None:
                    await asyncio.sleep(0.02)
                assert "this set is closed" in told
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)

    play(work)


def test_a_filter_that_the_core_refuses_leaves_what_is_kept_readable(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, refused = hosting.Places.ask, list[str]()

    async def ask_no_filter(places: Any, at: int, request: Any, kind: Any, **rest: Any) -> Any:
        message = request(places[at]).message
        if isinstance(decode_message(message)[0], AskFilter):
            refused.append("no")
            raise Unauthorized("the topology does not give all tags to this set")
        return await ask(places, at, request, kind, **rest)

    async def work() -> None:
        await fill(core, 6)
        async with relay(core, tmp_path, tags=frozenset({"a"})) as url:
            await until_known(url, 6)
        monkeypatch.setattr(hosting.Places, "ask", ask_no_filter)
        async with relay(core, tmp_path) as url, connect(url) as client:
            while len(refused) < 6:
                assert await why_refused(client) is None
                await asyncio.sleep(0.02)

    play(work)


def test_positions_by_stamp_are_asked_of_a_core_that_was_just_reached(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        """No pull has gone to the core yet."""

    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
        monkeypatch.setattr(hosting.RelayHost, "_answer_to", silent)
        async with relay(core, tmp_path) as url:
            async with connect(url) as client:
                address = (await client.describe("t")).addresses[0]
            asked = frame(m.Hello("test")), frame(m.Positions(address, 1))
            while isinstance((await spoken(url, *asked))[-1], m.Refusal):
                await asyncio.sleep(0.02)
            assert isinstance((await spoken(url, *asked))[-1], m.PositionsReply)

    play(work)


def test_strangers_and_bad_bytes_cost_one_connection(core: Node, tmp_path: Path) -> None:
    hello = frame(m.Hello("test"))

    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
            (refused,) = await spoken(url, frame(m.Ping()))
            assert "say hello first" in refused.message
            assert (await spoken(url, b"\xff" * 64)) == ["closed"]
            large = hello + b"\x02\x00\x10\x00\x00\x00\x70\x00" + bytes(8) + bytes(64)
            welcome, refused, closed = await spoken(url, large)
            assert isinstance(welcome, m.Welcome)
            assert ("publish to the core" in refused.message, closed) == (True, "closed")
            _, refused = await spoken(url, frame(m.Hello("test")), frame(m.Hello("test", 5)))
            assert "not 5" in refused.message
            await until_known(url, 3)

    play(work)


def test_a_folder_of_another_system_or_node_is_refused(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path, node=5):
            pass
        with pytest.raises(WeirError, match="belongs to node 5 of BrokerSet 0, not to node 6"):
            async with relay(core, tmp_path, node=6):
                pass
        text = (tmp_path / "relay.json").read_text()
        (tmp_path / "relay.json").write_text(text.replace('"system":1,', '"system":2,'))
        for part in (tmp_path / "log").iterdir():
            part.unlink()
        with pytest.raises(WeirError, match="holds a copy of system 2"):
            await run(
                RelayConfig(parse_url(core.url), node=5), tmp_path, ("127.0.0.1", 0),
                lambda *_: None, asyncio.Event(),
            )  # fmt: skip

    play(work)


def test_what_is_no_answer_of_an_upper_node_is_refused() -> None:
    told = b"".join(encode_message(AskFilter(1, 0, 1, 1, 0, 1, None)))
    with pytest.raises(RemoteProtocolError, match="asks a AskFilter"):
        hosting.event_of(told, hosting.CORE)


def test_the_core_is_named_as_clients_reach_it() -> None:
    for url in ("weir://a:6800,b:7000", "weirs://[::1]:7000,b:6800"):
        assert RelayConfig(parse_url(url)).core == url


def test_a_clock_that_is_set_back_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hosting.steady_ms()
    monkeypatch.setattr(system.time, "time_ns", lambda: 0)
    assert before <= hosting.steady_ms() < before + 60_000


def test_a_topic_that_was_made_since_the_last_look_is_found_at_once(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url, connect(url) as client:
            await known(client, end=3)
            monkeypatch.setattr(hosting, "_LOOK_EVERY", 3_600.0)
            await asyncio.sleep(0.2)  # the look that was due is done
            await fill(core, 3, topic="new")
            assert (await client.describe("new")).name == "new"
            await fill(core, 3, topic="newer")
            assert (await client.describe("newer")).name == "newer"
            with pytest.raises(UnknownTopic, match="no topic 'none' is relayed here"):
                await client.describe("none")

    play(work)


def test_whether_a_topic_is_new_is_not_known_while_the_core_is_away(
    core: Node, tmp_path: Path
) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url, connect(url, request_timeout="300ms") as client:
            await known(client, end=3)
            await asyncio.to_thread(core.crash)
            with pytest.raises((Unavailable, Disconnected), match="whether it is new"):
                await client.describe("other")

    play(work)
