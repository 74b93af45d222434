"""A comparison, small and whole: weir and a peer of our own making, both in their processes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from rigs.drawn_mutants import some_of
from weir.server.interpreter import environment, python
from weir_lab.bench import burst
from weir_lab.bench.comparison import compare as comparing
from weir_lab.bench.comparison.compare import Comparison, Settings, compare
from weir_lab.bench.comparison.plot import svg
from weir_lab.bench.comparison.round import Round, Row
from weir_lab.bench.comparison.workers import share
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import family
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.produce import Done
from weir_lab.bench.sides.contender import Contender
from weir_lab.bench.sides.own import Own
from weir_lab.bench.sides.peers.nats import Nats
from weir_lab.bench.sides.peers.peers import peer
from weir_lab.bench.sides.peers.rabbitmq import RabbitMq
from weir_lab.bench.sides.peers.redis import Redis
from weir_lab.bench.sides.peers.rival import Rival
from weir_lab.bench.sides.peers.server import NotInstalled, PeerFailed, running_peer
from weir_lab.bench.sides.working import Taken


def compared(**settings: object) -> tuple[Comparison, list[str]]:
    said: list[str] = []
    chosen = {"peers": ["redis:always"], "messages_max": 3_000, "deadline_s": 20.0, **settings}
    chosen.setdefault("foreign_cores_max", 1e9)  # other tests run beside
    return compare(Settings(**{"seconds": 0.1, **chosen}), said.append), said  # type: ignore[arg-type]


@pytest.fixture
def peers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out weir's own rows: what befalls a peer is told the same without them."""
    contenders = comparing._contenders

    def others(settings: Settings) -> nullcontext[list[Contender]]:
        with contenders(settings) as found:
            return nullcontext([one for one in found if not one.own])

    monkeypatch.setattr(comparing, "_contenders", others)


@pytest.mark.usefixtures("fake_redis")
@pytest.mark.parametrize("shape", some_of(1, "timeliness", "consume"))
def test_both_sides_do_the_same_work(shape: str) -> None:
    result, said = compared(shape=shape, amounts=[3])
    (one,) = result.rounds
    assert result.clean
    assert [row.side for row in one.rows] == ["weir", "weir:messages", "redis:always"]
    assert [row.result.messages for row in one.rows] == [3_000] * 3
    assert one.best == one.best_synced == "redis:always"
    own, _, other = one.rows
    assert one.times_best == pytest.approx((own.figure or 0) / (other.figure or 0))
    assert other.version == "0.0.1"
    assert len(said) == 3


@pytest.mark.usefixtures("fake_redis")
def test_lone_publishers_of_both_sides_are_compared_and_who_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Nats, "version", missing)
    result, said = compared(
        shape="singles", amounts=[3], peers=["nats", "redis:always"], messages_max=90
    )
    (one,) = result.rounds
    assert result.clean
    assert said[0] == "nats is left out: install it"
    assert [row.side for row in one.rows] == ["weir", "redis:always"]
    for row in one.rows:
        flow = row.result
        assert (flow.shape, flow.messages) == ("singles", 90)
        assert flow.server_us == pytest.approx(flow.cpu_s.server / 90 * 1e6)
        assert flow.foreign_cores == pytest.approx(flow.cpu_s.foreign / flow.seconds)


@pytest.mark.usefixtures("fake_redis")
def test_workers_of_both_sides_take_each_message_once_and_who_cannot_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RabbitMq, "version", lambda _: "1")
    monkeypatch.setattr(Nats, "version", missing)
    peers = ["nats", "rabbitmq:stream", "redis:always"]
    result, said = compared(shape="workers", amounts=[4], peers=peers, messages_max=5_003)
    (one,) = result.rounds
    assert result.clean
    assert said[:2] == [
        "nats is left out: install it",
        "rabbitmq:stream is left out: a stream is no work queue",
    ]
    assert [row.side for row in one.rows] == ["weir", "weir:messages", "redis:always"]
    for row in one.rows:
        work = row.result
        assert (work.workers, work.messages) == (4, 5_003)
        assert (work.lost, work.repeated, work.corrupt) == (0, 0, 0)
        assert row.figure == pytest.approx(5_003 / work.seconds)
        assert work.server_us == pytest.approx(work.cpu_s.server / 5_003 * 1e6)
        assert work.client_us == pytest.approx(work.cpu_s.consumer / 5_003 * 1e6)


@pytest.mark.usefixtures("fake_redis", "peers_alone")
@pytest.mark.parametrize(
    ("name", "value", "what"),
    some_of(
        1,
        ("FAKE_LOSES", "7", "took 1,999 of 2,000 messages within 2 s, which is not all"),
        ("FAKE_FORGETS", "1", "took 2,000 of 2,000 messages within 2 s, but not all acks were"),
        ("FAKE_REPEATS", "7", "NOT CLEAN: lost 1, repeated 1"),
    ),
)
def test_what_a_peer_does_to_workers_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv(name, value)
    result, _ = compared(shape="workers", amounts=[2], messages_max=2_000, deadline_s=2.0)
    assert not result.clean
    assert what in result.failures[-1]


def test_the_time_of_workers_ends_when_all_acks_are_known() -> None:
    side = SimpleNamespace(
        label="slow", one_thread=False, cpu_s=lambda: None, running=lambda: None,
        share=nothing, crew=lambda *_: Filled(), workers=lambda *_: Waiting(_[-1]),
    )  # fmt: skip
    work = run(share(side, "t", 2, 100, 100, 5.0))  # type: ignore[arg-type]
    assert work.clean
    assert work.seconds >= 0.3


async def nothing(*_: object) -> None:
    return None


class Filled:
    """A crew that has filled a topic."""

    async def __aenter__(self) -> Filled:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def ready(self) -> None:
        return None

    def go(self) -> None:
        return None

    async def done(self) -> list[Done]:
        return [Done(0, 100, 0, 0, 0.0, 1_000_000)]


class Waiting(Filled):
    """Workers that have all messages at once; the broker needs 0.3 s for their acks."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    def begin(self) -> None:
        for producer in range(4):
            self._taken.values(Block(100, 25).values_of(producer, 0, 25))

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def finish(self) -> None:
        await asyncio.sleep(0.3)


def test_a_client_that_is_shipped_for_a_peer_is_left_out_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(Redis, "version", lambda _: "7")
    monkeypatch.setattr(Nats, "version", lambda _: "2")
    monkeypatch.setattr(metadata, "version", lambda name: f"for {name}")
    versions = [peer(name)[0].version() for name in ("redis-py:always", "nats-py:always")]
    assert versions == ["7, client redis for redis", "2, client nats-py for nats-py"]
    monkeypatch.setattr(metadata, "version", absent)
    for name in ("redis-py", "nats-py"):
        with pytest.raises(NotInstalled, match="pip install weir-lab"):
            peer(name)[0].version()


def missing(self: Nats) -> str:
    raise NotInstalled("install it")


@pytest.mark.usefixtures("fake_redis")
def test_a_burst_and_latencies_are_compared_by_time() -> None:
    result, _ = compared(shape="burst", amounts=[20])
    (one,) = result.rounds
    assert result.clean
    assert [row.result.share_delivered for row in one.rows] == [1, 1]
    assert all(row.foreign_cores is not None for row in one.rows)
    own, other = one.rows
    assert one.times_best == pytest.approx((other.figure or 0) / (own.figure or 0))


@pytest.mark.usefixtures("fake_redis", "peers_alone")
def test_a_peer_that_loses_a_message_is_told_and_the_comparison_is_not_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_LOSES", "7")
    result, _ = compared(amounts=[1], deadline_s=1.0)
    assert not result.clean
    assert "1,999 messages came through redis:always" in str(result.rounds[0].rows[0].error)
    assert result.times_best is None


@pytest.mark.usefixtures("fake_redis", "peers_alone")
def test_a_peer_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_REFUSES", "1")
    result, said = compared(amounts=[1], deadline_s=5.0)
    assert "redis refused: -OOM" in str(result.rounds[0].rows[0].error)
    assert "redis refused: -OOM" in said[0]
    assert said[1:] == [f"once more: {line}" for line in result.failures]


@pytest.mark.usefixtures("fake_redis", "peers_alone")
def test_a_peer_that_fails_once_has_another_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "once").touch()
    monkeypatch.setenv("FAKE_REFUSES", str(tmp_path / "once"))
    result, said = compared(amounts=[1], deadline_s=5.0)
    assert result.clean
    assert "redis refused: -OOM" in said[0]
    assert said[1].startswith("once more: redis:always, 1: ")


@pytest.mark.parametrize("producers", [1, 3, 50, 200])
@pytest.mark.parametrize("size", [16, 100, 1_024, 300_000])
def test_peers_have_as_many_bytes_under_way_as_weir(
    producers: int, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Redis, "version", lambda _: "1")
    rival, counts = Rival(peer("redis:always")[0], tmp_path), [9] * producers
    node = SimpleNamespace(port=1, folder=tmp_path, url="weir://there")
    theirs = rival.crew("t", counts, size, 1.0).plans
    for by_message in (False, True):
        own = Own(node, by_message=by_message)  # type: ignore[arg-type]
        plans = own.crew("t", counts, size, 1.0).plans
        for mine, other in zip(plans, theirs, strict=True):
            assert mine.window * mine.chunk == other.window


def test_what_a_peer_lost_is_told() -> None:
    lossy = burst.Result(9, 1.0, 0.0, 1.0, 0.5, 0.5, 1, 2, 4, 0, 0, {"reset": 4}, 0.1, 0.1, "")
    row = Row("redis", "", "", True, 9, None, lossy.clean, None, lossy)
    result = Comparison("s", None, None, [Round(9, 1.0, None, None, None, None, [row])])
    assert result.failures == ["redis, 9: 0.00, NOT CLEAN: lost 4, problems {'reset': 4}"]


def test_a_peer_that_is_not_installed_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    said: list[str] = []
    with pytest.raises(NotInstalled, match="run scripts/install-peers"):
        compare(Settings(["redis"]), said.append)
    assert said == []


def test_the_script_that_installs_peers_is_where_the_message_says() -> None:
    script = Path(__file__).parents[5] / "scripts" / "install-peers"
    assert script.stat().st_mode & 0o111


@pytest.mark.usefixtures("fake_redis")
def test_a_peer_ends_with_its_folder() -> None:
    (server,) = peer("redis:everysec")
    with running_peer(server) as folder:
        assert server.answers()
        processes = family(server.pid)
        assert processes
    assert not server.answers()
    assert not folder.exists()
    assert not set(processes) & set(family(server.pid))


@pytest.mark.usefixtures("fake_redis")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_comparison_that_is_ended_takes_its_peers_with_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    # Other tests run beside: weir's own rows, which come first, are not run again for that.
    words = ("bench", "compare", "--peer", "redis:always", "--seconds", "60s", "--messages", "3000",
             "--reruns", "0")  # fmt: skip
    with subprocess.Popen(
        python("weir.cli", *words),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**environment(), "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"weir, 1: ")
        watches = []
        while not watches:  # until the peer is there
            found = [pid for pid in family(process.pid) if b"fake_redis" in command_of(pid)]
            watches = [os.pidfd_open(pid) for pid in found]
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(30)
    for watch in watches:
        assert select.select([watch], [], [], 30)[0], "the peer outlived the comparison"
        os.close(watch)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_peer_that_does_not_come_up_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho the disk is on fire\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (server,) = peer("redis:always")
    with pytest.raises(PeerFailed, match="the disk is on fire"), running_peer(server):
        raise AssertionError("it is up")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (Settings([]), "at least one peer"),
        (Settings(["kafka"]), "no peer 'kafka'"),
        (Settings(["redis"], amounts=[0]), "amounts of 1"),
        (Settings(["redis"], seconds=9.0, deadline_s=8.0), "below the deadline"),
        (Settings(["redis"], amounts=[5], messages_max=4), "a message for each producer"),
        (Settings(["redis-py"]), "redis-py is compared in the shapes singles, workers alone"),
        (Settings(["redis"], shape="workers", amounts=[257]), "there may be 256"),
        (Settings(["rabbitmq:stream"], shape="workers"), "a stream is no work queue"),
        (Settings(["redis"], turns=4), "turns=4: it must be odd"),
        (Settings(["direct"], shape="dormitory", turns=3), "it has one turn"),
    ],
)
def test_what_cannot_be_compared_is_named(settings: Settings, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        settings.check()


def test_a_plot_holds_a_bar_for_each_side_that_came_to_a_figure() -> None:
    rows = [
        Row("weir", "1", "", True, 50, 2e6, True, None, {}),
        Row("a<b", "1", "", True, 50, 1e5, True, None, {}),
        Row("gone", "1", "", False, 50, None, False, "it broke", {}),
    ]
    comparison = Comparison("messages/s", 20.0, 20.0, [Round(50, 2e6, 20.0, "a", 20.0, "a", rows)])
    drawing = ElementTree.fromstring(svg(comparison, "timeliness"))
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"weir", "a<b", "timeliness, 50"} <= set(texts)
    assert "gone" not in texts
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}rect"))) == 2
