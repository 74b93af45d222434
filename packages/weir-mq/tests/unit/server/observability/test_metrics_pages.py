"""A real node's figures and health pages, and the tiny server behind them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import weir
from weir.broker.api.counts import Histogram
from weir.broker.replica.disk_room import Full
from weir.device.client import Client as Device
from weir.errors import Disconnected, RemoteProtocolError, Unavailable, UnknownTopic
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, MetricsConfig, NodeConfig
from weir.server.observability import endpoint, monitoring
from weir.server.observability.endpoint import PLAIN, Answer, Family, Pages
from weir.server.observability.monitoring import Recent, _pages
from weir.spark.blocking_client import BlockingClient

BOARD = Path(__file__).parents[6] / "deploy/grafana-weir.json"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? ([0-9.e+-]+)')


async def get(port: int, path: str, request: str = "GET {} HTTP/1.1\r\n\r\n") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.format(path).encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    lengths = re.findall(r"Content-Length: (\d+)", head)
    assert not body or [len(body.encode())] == [*map(int, lengths)]
    return int(head.split()[1]), body


@asynccontextmanager
async def node(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[tuple[str, int, asyncio.Event]]:
    """A node on this loop: its URL, the port of its figures, and what stops it."""
    caplog.set_level(logging.INFO)
    config = Config(
        node=NodeConfig(data=str(folder), port=0, shards=1, logs=2),
        log=LogConfig(segment_mib=32, spares=0),
        metrics=MetricsConfig("127.0.0.1:0"),
    )
    stop, up = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        serve(config, lambda host, port: up.set_result(f"weir://{host}:{port}"), stop)
    )
    await asyncio.wait([running, up], timeout=30, return_when=asyncio.FIRST_COMPLETED)
    (port,) = re.findall(r"metrics at http://127.0.0.1:(\d+)/metrics", caplog.text)
    try:
        yield await up, int(port), stop
    finally:
        stop.set()
        assert await running


def parsed(text: str) -> dict[str, float]:
    """The samples by name and labels; every line is either a heading or a sample."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            found[f"{sample[1]}{{{sample[2] or ''}}}"] = float(sample[3])
    return found


async def work(url: str) -> None:
    """Some of everything that is counted."""
    async with weir.connect(url) as client:
        await client.create_topic("shop/flights")
        async with client.producer("shop/flights") as producer:
            for _ in range(100):
                producer.send(b"x" * 10)
        async with client.reader("shop/flights", follow=False) as reader:
            assert len([message async for message in reader]) == 100
        async with (
            client.consumer("shop/flights", cluster="c-1", max_messages=10) as holds,
            client.consumer("shop/flights", cluster="c-1", max_messages=10) as consumer,
        ):
            held = await anext(holds.batches())
            async for grant in consumer.batches():
                await grant.ack(confirmed=True)
                break
            assert held.offset < grant.offset
        with pytest.raises(UnknownTopic):
            await client.describe("absent")


def test_the_figures_are_what_happened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with node(tmp_path, caplog) as (url, port, _):
            await work(url)
            async with asyncio.timeout(30):
                while True:
                    status, text = await get(port, "/metrics")
                    assert status == 200
                    found = parsed(text)
                    flushes = [
                        found[f'weir_flush_seconds_count{{log="{log}"}}'] for log in range(2)
                    ]
                    if sum(flushes) == found["weir_flushes_total{}"]:
                        break  # else the end of one is not told yet
        place = 'namespace="shop",topic="flights",partition="0"'
        assert found[f"weir_messages_in_total{{{place}}}"] == 100
        assert found[f"weir_next_offset{{{place}}}"] == 100
        assert found[f"weir_messages_out_total{{{place}}}"] >= 110
        assert found[f"weir_bytes_in_total{{{place}}}"] > 1_000
        cluster = f'{place},cluster="c-1"'
        behind = found[f"weir_cluster_behind_messages{{{cluster}}}"]
        assert behind == 100, "the first messages are with somebody"
        assert 0 < found[f"weir_cluster_lag_messages{{{cluster}}}"] <= behind - 1
        batches = found[f"weir_batches_in_total{{{place}}}"]
        assert found["weir_confirms_total{}"] == batches
        assert found["weir_commit_seconds_count{}"] == batches
        assert found['weir_commit_seconds_bucket{le="+Inf"}'] == batches
        assert found['weir_refused_total{to="client",code="4",error="UnknownTopic"}'] == 1
        assert all(flushes)
        written = sum(found[f'weir_log_bytes_total{{log="{log}"}}'] for log in range(2))
        assert written >= found["weir_flushed_bytes_total{}"] > 0
        assert found["weir_ready{}"] == found["weir_partitions_led{}"] == 1
        assert found["weir_partitions{}"] == 1
        assert [found[f'weir_scrub_damage{{log="{log}"}}'] for log in range(2)] == [0, 0]
        assert found["weir_budget_limit_bytes{}"] == 512 << 20

    asyncio.run(run())


def test_the_page_keeps_to_the_conventions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> str:
        async with node(tmp_path, caplog) as (url, port, _):
            await work(url)
            return (await get(port, "/metrics"))[1]

    text = asyncio.run(run())
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert kinds.keys() == set(re.findall(r"^# HELP (\S+) .+\.$", text, re.MULTILINE))
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert name.startswith(("weir_", "process_"))
    samples = {name.partition("{")[0] for name in parsed(text)}
    bare = {re.sub("_(bucket|sum|count)$", "", one) for one in samples}
    assert bare == kinds.keys(), "a metric without a sample, or a sample without a heading"
    for name in board_names():
        assert name in samples, f"{BOARD.name} asks for {name}, which no node exports"


def board_names() -> set[str]:
    """The metrics that the queries of the Grafana board name."""
    board = msgspec.json.decode(BOARD.read_bytes())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    variables = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    assert len(queries) > 10
    names = [re.findall(r"\b(?:weir|process)_[a-z_]+", query) for query in queries + variables]
    assert all(names)
    return {name for found in names for name in found}


def test_health_tells_alive_from_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with node(tmp_path, caplog) as (_, port, stop):
            assert await get(port, "/healthz") == (200, "alive\n")
            assert await get(port, "/readyz") == (200, "ready\n")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stop.set()
            writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()

    asyncio.run(run())


def no_news_here() -> None:
    raise Unavailable("no news of the metadata")


def test_no_shard_is_ready_while_one_of_the_node_is_away() -> None:
    away: list[int] = []

    async def run() -> None:
        shard: Any = SimpleNamespace(
            ready=True, needed_bytes=0, short=None, check_news=lambda: None
        )
        metrics: Any = SimpleNamespace(text=None)
        pages = _pages(metrics, shard, asyncio.Event(), lambda: away)
        async with pages.listening("127.0.0.1", 0) as port:
            assert await get(port, "/readyz") == (200, "ready\n")
            away.append(1)
            assert await get(port, "/readyz") == (503, "shards that do not serve: 1\n")
            away.clear()
            shard.needed_bytes = 64 * 1024 * 1024
            full = "not ready for writes: the disk is full, free 64 MiB or more\n"
            assert await get(port, "/readyz") == (503, full)
            shard.check_news = no_news_here
            assert await get(port, "/readyz") == (503, "not ready: no news of the metadata\n")
            shard.check_news = lambda: None
            shard.needed_bytes, shard.short = 0, Full((2,), 64 * 1024 * 1024)
            full = "not ready for writes: node 2 has a full disk, free 64 MiB or more there\n"
            assert await get(port, "/readyz") == (503, full)

    asyncio.run(run())


def test_numbers_are_told_in_full() -> None:
    numbers = (1_795_317_190.25, 1.0, 0.001, 3, 1e-9)
    lines = Family("weir_x", "gauge", "X.", [({}, number) for number in numbers]).lines()
    assert [line.split()[1] for line in lines if line[0] != "#"] == [
        "1795317190.25", "1", "0.001", "3", "1e-09",
    ]  # fmt: skip


async def page() -> Answer:
    return 200, PLAIN, "here\n"


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ("GET /page?x=1 HTTP/1.1\r\nHost: here\r\n\r\n", 200, "here\n"),
        ("HEAD /page HTTP/1.0\r\n\r\n", 200, ""),
        ("GET /other HTTP/1.1\r\n\r\n", 404, "no such page; there are /page\n"),
        ("POST /page HTTP/1.1\r\n\r\n", 405, "only GET and HEAD\n"),
        ("GET /page\r\n\r\n", 400, "this is HTTP/1.1: GET /metrics\n"),
        ("GET /page HTTP/1.1\r\n" + "x" * 20_000 + "\r\n\r\n", 400, "a request of over 8192"),
    ],
)
def test_requests(request_: str, status: int, says: str) -> None:
    async def run() -> tuple[int, str]:
        async with Pages({"/page": page}).listening("127.0.0.1", 0) as port:
            return await get(port, "", request_.replace("{", "{{"))

    found, body = asyncio.run(run())
    assert found == status
    assert body.startswith(says)
    assert bool(body) == bool(says)


def test_who_says_nothing_or_comes_in_crowds_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(endpoint, "CONNECTIONS_MAX", 1)

    async def run() -> None:
        async with Pages({"/page": page}).listening("127.0.0.1", 0) as port:
            silent = await asyncio.open_connection("127.0.0.1", port)
            crowd = await asyncio.open_connection("127.0.0.1", port)
            for reader, writer in (crowd, silent):
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            assert (await get(port, "/page"))[0] == 200

    asyncio.run(run())


def test_those_who_say_nothing_make_room_for_those_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 600)

    async def run() -> None:
        async with Pages({"/page": page}).listening("127.0.0.1", 0) as port:
            silent = [
                await asyncio.open_connection("127.0.0.1", port)
                for _ in range(endpoint.CONNECTIONS_MAX)
            ]
            assert await get(port, "/page") == (200, "here\n")
            oldest, _ = silent[0]
            assert await asyncio.wait_for(oldest.read(), 10) == b""
            silent[1][1].write(b"GET /page HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(silent[1][0].read(), 10)).endswith(b"here\n")
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_where_all_ask_only_cheap_pages_are_served() -> None:
    async def run() -> None:
        gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

        async def slow() -> Answer:
            waiting.release()
            await gate.wait()
            return await page()

        pages = Pages({"/slow": slow, "/healthz": page}, cheap=("/healthz",))
        async with pages.listening("127.0.0.1", 0) as port, asyncio.TaskGroup() as group:
            asked = [group.create_task(get(port, "/slow")) for _ in range(endpoint.CONNECTIONS_MAX)]
            for _ in asked:
                await waiting.acquire()
            assert (await get(port, "/slow"))[0] == 503
            assert await get(port, "/healthz") == (200, "here\n")
            gate.set()
        assert {task.result() for task in asked} == {(200, "here\n")}

    asyncio.run(run())


def test_any_number_who_ask_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        made = 0

        async def make() -> str:
            nonlocal made
            made += 1
            number = made
            await asyncio.sleep(0)
            return str(number)

        kept = Recent(make)
        assert await asyncio.gather(*[kept.text() for _ in range(20)]) == ["1"] * 20
        monkeypatch.setattr(monitoring, "KEPT_SECONDS", 0.0)
        assert await Recent(make).text() == "2"
        fresh = Recent(make)
        assert [await fresh.text(), await fresh.text()] == ["3", "4"]

    asyncio.run(run())


def test_a_histogram_is_cumulative() -> None:
    seconds = Histogram((0.5, 1.0))
    for value in (0.1, 0.5, 0.7, 3.0):
        seconds.add(value)
    assert [*Family("s_seconds", "histogram", "S.", [({"a": "b"}, seconds)]).lines()][2:] == [
        's_seconds_bucket{a="b",le="0.5"} 2',
        's_seconds_bucket{a="b",le="1"} 3',
        's_seconds_bucket{a="b",le="+Inf"} 4',
        's_seconds_sum{a="b"} 4.3',
        's_seconds_count{a="b"} 4',
    ]


def test_who_takes_this_port_for_the_brokers_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with node(tmp_path / "data", caplog) as (_, port, _):
            with pytest.raises(Disconnected, match=r"over HTTP.*that of its metrics"):
                await weir.connect(f"weir://127.0.0.1:{port}", request_timeout=1.0)
            began = time.monotonic()
            for url in (f"weir://127.0.0.1:{port}", f"weir://127.0.0.1:{port},localhost:{port}"):
                with pytest.raises(Disconnected, match=r"no broker answers there.*over HTTP"):
                    await asyncio.to_thread(weir.sync.connect, url)
            assert time.monotonic() - began < 20, "one attempt would be given 30 s"
            with pytest.raises(Disconnected, match=r"within 1 s"):  # one may be a broker's yet
                await weir.connect(f"weir://127.0.0.1:{port},127.0.0.1:1", request_timeout=1.0)
            with pytest.raises(RemoteProtocolError, match="answers over HTTP"):
                await asyncio.to_thread(BlockingClient, "127.0.0.1", port, 5.0)
            with pytest.raises(Disconnected, match="answers over HTTP"):
                await asyncio.to_thread(Device, "127.0.0.1", port, 7, 1, "t", timeout=1.0)

    asyncio.run(test())
