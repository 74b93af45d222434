"""What programs call, on a network of one rack in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import weir_toc
from rigs.loopback import INTERVAL, Loopback, loopback
from weir_toc import (
    Fenced,
    InvalidScattering,
    Message,
    NotSent,
    ProcessFailed,
    Refused,
    SendBufferFull,
    SendFailed,
)
from weir_toc import packet as wire
from weir_toc.cli import WRONG_USE, main
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import EndpointConfig, Service
from weir_toc.endpoint.making import RUN_MIN
from weir_toc.errors import InvalidUse, TocError
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.process import SWITCHES_PER_INTERVAL, Process
from weir_toc.hosts.scheduling import NICE, OTHERS_NICE, nice_of
from weir_toc.member import REORDER_BYTES_MAX, REORDER_BYTES_MIN, UNSENT_MAX, ProcessThread
from weir_toc.topology import rack_of, switch_id


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("toc")) as made:
        yield made


def message(stream: weir_toc.sync.EventStream) -> Message:
    """The next message. The processes of earlier tests may fail only now."""
    return next(one for one in stream if isinstance(one, Message))


async def amessage(stream: AsyncIterator[weir_toc.Event]) -> Message:
    async for one in stream:
        if isinstance(one, Message):
            return one
    raise AssertionError("the stream has ended")


def failure_of(stream: weir_toc.sync.EventStream, process: int) -> ProcessFailed:
    return next(one for one in stream if isinstance(one, ProcessFailed) and one.process == process)


def test_two_programs_exchange_messages_of_both_services(network: Loopback) -> None:
    async def body() -> None:
        async with weir_toc.join(network.url, name="a") as a:
            async with weir_toc.join(network.url, name="b") as b:
                await a.wait_for("b")
                stamp = await a.send_reliable([("a", b"to a"), (b.process, b"to b")])
                assert await amessage(a.reliable) == Message(stamp, a.process, b"to a")
                assert await amessage(b.reliable) == Message(stamp, a.process, b"to b")
                later = await b.send([("a", bytes(5_000)), ("b", b"")])
                assert later > stamp  # b has delivered the first one
                assert await anext(b.best_effort) == Message(later, b.process, b"")
                assert await anext(a.best_effort) == Message(later, b.process, bytes(5_000))
                assert await a.drain()
                gone = b.process
            async for failed in a.reliable:
                if isinstance(failed, ProcessFailed) and failed.process == gone:
                    assert failed.stamp > stamp
                    break
            assert a.describe()["damaged"] == 0

    asyncio.run(body())


def test_tasks_that_share_a_stream_get_each_message_once(network: Loopback) -> None:
    async def body() -> None:
        async with weir_toc.join(network.url, name="i") as i:
            first, second = (asyncio.create_task(anext(i.best_effort)) for _ in range(2))
            await asyncio.sleep(0.01)
            stamps = [await i.send([("i", b"one")])]
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            stamps.append(await i.send([("i", b"two")]))
            assert sorted([(await first).stamp, (await second).stamp]) == stamps

    asyncio.run(body())


def test_the_blocking_twin_does_the_same(network: Loopback) -> None:
    with weir_toc.sync.join(network.url, name="c") as c:
        with weir_toc.sync.join(network.url, name="d") as d:
            c.wait_for("d")
            stamp = c.send_reliable([("d", b"reliable")])
            assert message(d.reliable) == Message(stamp, c.process, b"reliable")
            with pytest.raises(TimeoutError):
                d.best_effort.next(0.01)
            stamp = c.send([("d", b"best effort")])
            assert next(d.best_effort) == Message(stamp, c.process, b"best effort")
            assert c.drain()
            assert d.names["c"] == c.process
            gone = d.process
        assert failure_of(c.reliable, gone).stamp > 0
        assert c.describe()["process"] == c.process


def test_programs_read_the_time_that_stamps_are_taken_from(network: Loopback) -> None:
    async def body() -> None:
        async with weir_toc.join(network.url, name="now") as me:
            times = [await me.now()]
            for _ in range(3):
                stamp = await me.send([("now", b"")])
                assert times[-1] <= stamp
                times.append(await me.now())
            assert times == sorted(times)
            said = me.describe()["clock_ns"]
            assert isinstance(said, int)
            assert times[-1] <= said < times[-1] + 10_000_000_000
        with pytest.raises(TocError, match="has left"):
            await me.now()

    asyncio.run(body())
    with weir_toc.sync.join(network.url, name="then") as me:
        assert me.now() <= me.send_reliable([("then", b"")])


def test_what_was_sent_before_a_process_leaves_is_delivered(network: Loopback) -> None:
    with weir_toc.sync.join(network.url, name="j") as j:
        with weir_toc.sync.join(network.url, name="k") as k:
            k.wait_for("j")
            stamps = k.send_reliable_many([[("j", bytes([n]))] for n in range(20)])
        assert [message(j.reliable).stamp for _ in stamps] == stamps
        assert failure_of(j.reliable, k.process).stamp >= stamps[-1]


def test_members_of_a_controller_have_addresses_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    twice = "toc://localhost:7001,127.0.0.1:7001,localhost:7001"
    words = ["controller", "--id", "1", "--members", twice, "--folder", str(tmp_path / "c")]
    assert main(words) == WRONG_USE
    assert "names an address twice: each member has its own" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_calls_that_cannot_be_carried_out_say_why(network: Loopback) -> None:
    with weir_toc.sync.join(network.url, name="e") as e:
        with pytest.raises(InvalidScattering, match="no process named 'nobody'"):
            e.send([("nobody", b"")])
        with pytest.raises(InvalidScattering, match="32769 bytes"):
            e.send_reliable([("e", bytes(32_769))])
        for payload in ("text", 5, None, [1]):
            for count in (1, 2 * RUN_MIN):
                with pytest.raises(InvalidScattering, match="a payload is bytes, and that to 'e'"):
                    e.send_many([[("e", payload)]] * count)  # type: ignore[list-item]
        for parts in (["e"], [("e",)], [("e", b"", 1)], 7, [7]):
            for count in (1, 2 * RUN_MIN):
                with pytest.raises(InvalidScattering, match="pairs of receiver and payload"):
                    e.send_reliable_many([parts] * count)  # type: ignore[list-item]
        for part in (b"of any kind", bytearray(b"of any kind"), memoryview(b"of any kind")):
            e.send([("e", part)])  # type: ignore[list-item]
            assert message(e.best_effort).payload == b"of any kind"
        for to in (2.0, b"e", True, None, ("e",), -1, 0, 1 << 31, 1 << 64):
            for send in (e.send_many, e.send_reliable_many):
                for count in (1, 2 * RUN_MIN):
                    with pytest.raises(InvalidScattering, match="a name or the id of a process"):
                        send([[(to, b"x")]] * count)  # type: ignore[list-item]
        e.send([(e.process, b"still here")])
        assert message(e.best_effort).payload == b"still here"
        with pytest.raises(Refused, match="a process named 'e' is here already"):
            weir_toc.sync.join(network.url, name="e", timeout=0.5).__enter__()
        with pytest.raises(Refused, match="there is no rack 7: this network has rack 0 alone"):
            # No network gets more racks: it does not wait until the time is over.
            weir_toc.sync.join(network.url, name="f", rack=7, timeout=3_600).__enter__()
    with pytest.raises(weir_toc.TocError, match="has left the network"):
        e.send([(1, b"")])
    with pytest.raises(weir_toc.TocError, match="not of the form toc://"):
        weir_toc.sync.join("localhost:7", name="f").__enter__()
    with pytest.raises(weir_toc.TocError, match=r"could not join in 0\.3 s"):
        weir_toc.sync.join("toc://127.0.0.1:1", name="f", timeout=0.3).__enter__()


@pytest.mark.parametrize("join", [weir_toc.join, weir_toc.sync.join])
@pytest.mark.parametrize(
    ("name", "rack"), [("", 0), ("a" * 256, 0), (b"a", 0), (None, 0), ("a", -1), ("a", "0")]
)
def test_a_name_or_rack_that_none_can_have_is_refused_at_the_call(
    join: Any, name: Any, rack: Any
) -> None:
    with pytest.raises(InvalidUse, match=r"1 to 255 characters|numbers from 0 on"):
        join("toc://127.0.0.1:1", name=name, rack=rack)
    join("toc://127.0.0.1:1", name="a" * 255, rack=0)


@pytest.mark.parametrize("told", ["-1", "one", "0x1", " "])
def test_a_rack_of_the_environment_that_none_can_have_is_refused(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TOC_RACK", told)
    with pytest.raises(InvalidUse, match=r"WEIR_TOC_RACK=.*: racks have numbers from 0 on"):
        weir_toc.sync.join("toc://127.0.0.1:1", name="a").__enter__()


def test_the_environment_tells_the_rack_unless_the_program_does(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TOC_RACK", "7")
    with pytest.raises(Refused, match="there is no rack 7"):
        weir_toc.sync.join(network.url, name="r", timeout=60).__enter__()
    with weir_toc.sync.join(network.url, name="r", rack=0) as r:
        assert rack_of(r.process) == 0
    monkeypatch.setenv("WEIR_TOC_RACK", "")
    with weir_toc.sync.join(network.url, name="r2") as r:
        assert rack_of(r.process) == 0


@pytest.mark.parametrize("join", [weir_toc.join, weir_toc.sync.join])
@pytest.mark.parametrize("memory", [REORDER_BYTES_MIN - 1, REORDER_BYTES_MAX + 1, 1e6, True, None])
def test_memory_that_none_can_have_is_refused_at_the_call(join: Any, memory: Any) -> None:
    with pytest.raises(InvalidUse, match=r"^reorder_bytes=.* 42,368 to 1,073,741,824 is possible"):
        join("toc://127.0.0.1:1", name="a", reorder_bytes=memory)
    for least_or_most in (REORDER_BYTES_MIN, REORDER_BYTES_MAX):
        join("toc://127.0.0.1:1", name="a", reorder_bytes=least_or_most)


def test_a_program_says_how_much_memory_others_may_use(network: Loopback) -> None:
    with (
        weir_toc.sync.join(network.url, name="m", reorder_bytes=REORDER_BYTES_MIN) as m,
        weir_toc.sync.join(network.url, name="n") as n,
    ):
        n.wait_for("m")
        n.send_reliable([("m", b"to m"), ("n", b"to n")])
        assert message(m.reliable).payload == b"to m"
        assert m.describe()["granted"] == REORDER_BYTES_MIN
        assert n.describe()["granted"] == EndpointConfig().reorder_budget

    async def body() -> None:
        async with weir_toc.join(network.url, name="o", reorder_bytes=5_000_000) as o:
            await o.send_reliable([("o", b"to itself")])
            assert o.describe()["granted"] == 5_000_000

    asyncio.run(body())


def test_best_effort_leaves_without_a_receiver_that_is_dead(network: Loopback) -> None:
    with weir_toc.sync.join(network.url, name="t") as t:
        with weir_toc.sync.join(network.url, name="u") as u:
            dead = u.process
        failure_of(t.reliable, dead)
        stamp = t.send([(dead, b"to the dead"), ("t", b"to myself")])
        events = [next(t.best_effort), next(t.best_effort)]
        assert {*events} == {
            Message(stamp, t.process, b"to myself"), SendFailed(stamp, dead, "process failed"),
        }  # fmt: skip
        with pytest.raises(NotSent, match=f"as of process {dead}: process failed"):
            t.send_reliable([(dead, b"to the dead"), ("t", b"to myself")])


def test_counters_are_read_in_the_thread_that_changes_them(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    with weir_toc.sync.join(network.url, name="j") as j:
        monkeypatch.setattr(
            Process, "describe", lambda _self: {"thread": threading.current_thread().name}
        )
        assert j.describe() == {"thread": "toc j"}
        monkeypatch.undo()


def test_a_program_that_takes_nothing_stops_its_senders(network: Loopback) -> None:
    limit = EndpointConfig().reorder_budget + EndpointConfig().send_buffer
    part = bytes(32_000)

    async def body() -> None:
        async with weir_toc.join(network.url, name="g") as g:
            sends: list[asyncio.Task[int]] = []
            while not any(one.done() and one.exception() for one in sends):
                assert len(sends) * len(part) <= limit
                sends.append(asyncio.create_task(g.send_reliable([("g", part)])))
                await asyncio.sleep(0)
            refused = [one.exception() for one in sends if one.done() and one.exception()]
            assert isinstance(refused[0], SendBufferFull)
            stamps = []
            async for event in g.reliable:
                if isinstance(event, ProcessFailed):
                    continue  # of an earlier test
                assert isinstance(event, Message)
                assert event.payload == part
                stamps.append(event.stamp)
                reordering = g.describe()["reordering"]
                assert isinstance(reordering, int)
                assert reordering <= EndpointConfig().reorder_budget
                if all(one.done() for one in sends):
                    taken = [one.result() for one in sends if one.exception() is None]
                    if len(stamps) == len(taken):
                        break
            assert stamps == taken

    asyncio.run(body())


def test_collections_of_garbage_leave_out_what_exists_as_a_process_joins(
    network: Loopback,
) -> None:
    """Half of a full collection of all modules is longer than links may be silent at 1 ms."""
    gc.unfreeze()
    assert len(gc.get_objects()) > 10_000

    async def body() -> None:
        async with weir_toc.join(network.url, name="frozen"):
            assert len(gc.get_objects()) < 10_000

    asyncio.run(body())
    gc.unfreeze()


def test_the_thread_of_the_network_goes_before_that_of_the_program(network: Loopback) -> None:
    async def body() -> None:
        async with weir_toc.join(network.url, name="prompt"):
            (thread,) = (one for one in threading.enumerate() if one.name == "toc prompt")
            assert thread.native_id is not None
            found = nice_of(thread.native_id), nice_of(threading.get_native_id())
            assert found == ((NICE, OTHERS_NICE) if os.geteuid() == 0 else (own, own))

    own = nice_of(threading.get_native_id())
    asyncio.run(body())
    assert nice_of(threading.get_native_id()) == own


def test_sends_that_the_thread_has_not_come_to_are_bounded(network: Loopback) -> None:
    stands, may_go_on = threading.Event(), threading.Event()
    part = bytes(32_000)

    async def stand() -> None:
        stands.set()
        may_go_on.wait(60)

    def fill() -> None:
        while len(sends) * len(part) <= UNSENT_MAX:
            sends.append(thread.send_many(Service.RELIABLE, ([("l", part)],)))

    thread = ProcessThread(network.url, "l", None)
    sends: list[Future[list[int]]] = []
    try:
        thread.call(thread.joined(30)).result()
        thread.call(stand())
        assert stands.wait(60)
        with pytest.raises(SendBufferFull, match="wait until some have left"):
            fill()
        assert len(sends) * len(part) > 0.9 * UNSENT_MAX
    finally:
        may_go_on.set()
        thread.stop()
    assert all(one.done() for one in sends)


def test_what_has_left_or_was_refused_makes_room(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = bytes(1_000)
    monkeypatch.setattr("weir_toc.member.UNSENT_MAX", 2 * len(part))
    with weir_toc.sync.join(network.url, name="m") as m:
        stamps = []
        for _ in range(3):
            with pytest.raises(InvalidScattering):
                m.send_reliable([("nobody", part)])
            stamps.append(m.send_reliable([("m", part)]))
        assert [message(m.reliable).stamp for _ in stamps] == stamps
        # One call alone may be larger: the endpoint says why that is refused.
        assert len(m.send_many([[("m", part)]] * 3)) == 3
    with pytest.raises(TocError, match="has left the network"):
        m.send([("m", part)])


def test_strange_packets_are_dropped_and_counted(network: Loopback) -> None:
    assert network.aggregator is not None
    to = network.aggregator.socket.address
    with (
        weir_toc.sync.join(network.url, name="h") as h,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        before = network.aggregator.strangers
        damaged = wire.encode(wire.Packet(wire.BEACON, h.process))
        damaged[3] ^= 1
        for data in (b"", bytes(2_000), damaged,
                         wire.encode(wire.Packet(wire.BEACON, h.process, epoch=1)),
                         wire.encode(wire.Packet(wire.JOIN, h.process, epoch=2)),
                         wire.encode(wire.Packet(wire.JOIN, 5 << 16, epoch=1))):  # fmt: skip
            stranger.sendto(data, to)
        # Behind them in the same socket: once it is delivered, all were read.
        stamp = h.send_reliable([("h", b"x")])
        assert message(h.reliable) == Message(stamp, h.process, b"x")
        assert network.aggregator.strangers == before + 6


def test_an_error_in_the_thread_ends_the_process(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    with weir_toc.sync.join(network.url, name="k") as k:

        def failing(_self: Endpoint, _now: int) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(Endpoint, "tick", failing)
        with pytest.raises(weir_toc.TocError, match="planted"):
            message(k.reliable)
        with pytest.raises(weir_toc.TocError, match="planted"):
            k.send_reliable([("k", b"x")])


def test_an_aggregator_of_no_switch_ends_with_words(
    network: Loopback, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["aggregator", network.url, "--switch", "rack-9"]) == 1
    said = capsys.readouterr().err
    assert "founded with 1 rack, 0 spines and 0 cores: it has no rack-9\n" in said


def test_an_aggregator_listens_where_it_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregator", "toc://127.0.0.1:1", "--listen", "0.0.0.0:7100"]) == WRONG_USE
    assert "--listen 0.0.0.0:7100: processes cannot reach that" in capsys.readouterr().err
    told = ["--listen", "0.0.0.0:7100", "--advertise", "0.0.0.0:0"]
    assert main(["aggregator", "toc://127.0.0.1:1", *told]) == WRONG_USE
    assert "Add --advertise HOST:PORT" in capsys.readouterr().err


def test_an_aggregator_is_reached_where_it_says() -> None:
    """A port of 0 stands for the one that it listens at."""
    for advertise, due in (
        (None, "127.0.0.1"), (("toc.example", 0), "toc.example"), (("toc.example", 9), 9),
    ):  # fmt: skip
        aggregator = Aggregator(
            [("127.0.0.1", 1)], switch_id("rack-0"), ("127.0.0.1", 0), advertise
        )
        own = aggregator.socket.address[1]
        aggregator.socket.close()
        assert aggregator.advertised == (("toc.example", 9) if due == 9 else (due, own))


def test_a_member_listens_elsewhere_than_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--id", "1", "--folder", str(tmp_path), "--members", "toc://192.0.2.1:7001"]
    assert main(["controller", *own, "--listen", "nowhere"]) == WRONG_USE
    assert "--listen: 'nowhere' is not of the form host:port" in capsys.readouterr().err


def test_an_aggregator_that_restarts_excludes_its_processes(tmp_path: Path) -> None:
    with loopback(tmp_path) as network, weir_toc.sync.join(network.url, name="a") as a:
        stamp = a.send_reliable([("a", b"x")])
        assert message(a.reliable) == Message(stamp, a.process, b"x")
        network.restart_aggregator()
        with pytest.raises(Fenced, match="Join again"):
            next(a.reliable)
        with pytest.raises(Fenced):
            a.send([("a", b"x")])
        with weir_toc.sync.join(network.url, name="a") as again:
            assert again.process > a.process
            later = again.send_reliable([("a", b"y")])
            assert later > stamp
            assert message(again.reliable) == Message(later, again.process, b"y")


def test_a_call_beside_the_end_is_answered(network: Loopback) -> None:
    """Calls from other threads, up to the last moment, raise TocError; none waits for ever."""
    for _ in range(10):
        thread = ProcessThread(network.url, "a", None)
        found: list[BaseException] = []

        def ask(thread: ProcessThread = thread, found: list[BaseException] = found) -> None:
            try:
                while True:
                    thread.call(thread.process.wait_for(())).result(60)
            except BaseException as error:
                found.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        thread.stop()
        asking.join(60)
        assert not asking.is_alive()
        assert isinstance(found[0], TocError)


def test_joining_lets_a_busy_program_give_up_the_lock_in_time(network: Loopback) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1.0)
        with weir_toc.sync.join(network.url, name="busy"):
            assert sys.getswitchinterval() == pytest.approx(
                INTERVAL / 1e9 / SWITCHES_PER_INTERVAL, rel=0.01
            )
        sys.setswitchinterval(1e-4)  # one that is short enough stays
        with weir_toc.sync.join(network.url, name="busy too"):
            assert sys.getswitchinterval() == pytest.approx(1e-4, rel=0.01)
    finally:
        sys.setswitchinterval(before)
