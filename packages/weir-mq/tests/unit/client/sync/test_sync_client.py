"""The client without async, against a node in memory."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator

import pytest

from rigs.clients import background_of, call_late, calls_of
from weir import sync, testing
from weir.client.connection.system import BackgroundThread
from weir.errors import Disconnected, TooLarge, UnknownTopic


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_publish_read_and_consume(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        assert w.create_topic("t", partitions=2).name == "t"
        receipt = w.publish("t", "hello", key="k")
        with w.producer("t", partition=receipt.partition) as producer:
            sent = producer.send(b"one")
            (batch,) = producer.send_many([b"two", b"three"])
            assert sent.wait().offset == 1
            assert (batch.wait().offset, batch.count, batch.done) == (2, 2, True)
        values = [b"hello", b"one", b"two", b"three"]
        with w.reader("t", follow=False) as reader:
            assert reader.positions == {0: 0, 1: 0}
            assert [message.value for message in reader] == values
            assert reader.positions[receipt.partition] == 4
        batches = w.reader("t", follow=False).batches()
        assert [value for batch in batches for value in batch.values()] == values
        with w.consumer("t", cluster="c") as consumer:
            for value in values[:-1]:
                with next(consumer) as message:
                    assert message.value == value
            held = next(consumer)
            assert held.value == values[-1]
        with w.consumer("t", cluster="c") as consumer:
            # The last of them was not acked: nobody said that it was done.
            grant = next(consumer.batches())
            assert [message.value for message in grant.messages()] == values[3:]
            assert grant.ack(confirmed=True)
        assert w.positions("t")[1][receipt.partition] == 4
        assert [topic.name for topic in w.topics()] == ["t"]
        assert w.describe("t").name == "t"
    assert "weir-sync" not in threads()


def test_large_values_come_whole_or_in_pieces(node: testing.Node) -> None:
    value = os.urandom(1 << 20) * 9
    with sync.connect(node.url) as w:
        w.create_topic("t")
        w.publish("t", value)
        with w.producer("t") as producer:
            producer.publish_from(
                value[at : at + (1 << 20)] for at in range(0, len(value), 1 << 20)
            )
        assert [message.value for message in w.reader("t", follow=False)] == [value, value]
        (first, second) = w.reader("t", follow=False, value_bytes_max=0)
        assert (first.size, first.read()) == (len(value), value)
        assert b"".join(second.chunks()) == value
        with w.consumer("t", cluster="c", value_bytes_max=0) as consumer, next(consumer) as message:
            assert message.read() == value
        with pytest.raises(TooLarge, match="stream it"):
            first.value  # noqa: B018  # the look-up is what raises


def test_batches_need_no_event_loop_for_large_values(node: testing.Node) -> None:
    value = os.urandom(1 << 20) * 9
    with sync.connect(node.url) as w:
        w.create_topic("t")
        w.publish("t", value)
        w.publish("t", b"small")
        for option, loaded in ((1 << 20, False), (16 << 20, True)):
            with w.consumer("t", cluster=f"c{option}", value_bytes_max=option) as consumer:
                grants = _until(consumer, 2)
                granted = [m for grant in grants for m in grant.messages()]
                reader = w.reader("t", follow=False, value_bytes_max=option)
                read = [m for batch in reader.batches() for m in batch.messages()]
                for large, small in (granted, read):
                    assert small.value == b"small"
                    assert large.loaded == loaded
                    whole = large.value if loaded else b"".join(large.chunks())  # type: ignore[arg-type]
                    assert whole == value
                for grant in grants:
                    grant.ack()


def _until(consumer: sync.Consumer, count: int) -> list[sync.LeasedBatch]:
    grants: list[sync.LeasedBatch] = []
    for grant in consumer.batches():
        grants.append(grant)
        count -= grant.next_offset - grant.offset
        if not count:
            break
    return grants


def test_errors_come_without_the_other_threads_frames(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        with pytest.raises(UnknownTopic) as caught:
            w.describe("nowhere")
        files = {frame.filename for frame in traceback.extract_tb(caught.tb)}
        assert {os.path.basename(name) for name in files} == {
            "test_sync_client.py",
            "__init__.py",
            "system.py",
        }
        with pytest.raises(UnknownTopic), w.reader("nowhere"):
            pass


def test_nobody_there(node: testing.Node) -> None:
    node.crash()
    with pytest.raises(Disconnected, match="check that a broker runs there"):
        sync.connect(node.url, request_timeout=0.05)
    with pytest.raises(ValueError, match="weir://"):
        sync.connect("nonsense://")
    assert "weir-sync" not in threads()


def test_a_closed_connection_says_so(node: testing.Node) -> None:
    w = sync.connect(node.url)
    w.close()
    w.close()
    with pytest.raises(RuntimeError, match="connect again"):
        w.ping()


def test_leaving_a_connection_open_is_told(node: testing.Node) -> None:
    w = sync.connect(node.url)
    background = background_of(w)
    with pytest.warns(ResourceWarning, match="call close"):
        w.__del__()
    w.close()
    assert not background.running


def test_ctrl_c_ends_a_wait_and_loses_nothing(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        reader = w.reader("t").open()
        main = threading.get_ident()
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        timer.join()
        w.publish("t", b"later")
        assert next(reader).value == b"later"
        reader.close()


def test_threads_share_a_connection(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        offsets: list[int] = []

        def work() -> None:
            offsets.extend(w.publish("t", b"x").offset for _ in range(10))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(offsets) == [*range(40)]


def test_a_callback_that_waits_for_weir_is_stopped(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        with (
            pytest.raises(RuntimeError, match="do it outside"),
            w.producer("t", on_confirm=lambda _: w.ping()) as producer,
        ):
            producer.send(b"x")


def test_a_forked_child_is_told_to_connect(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        told, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: that is it
            child = os.fork()
        if child == 0:
            try:
                w.ping()
            except RuntimeError as error:
                os.write(tell, str(error).encode())
            finally:
                os._exit(0)
        os.close(tell)
        with os.fdopen(told) as pipe:
            assert "connect in each process" in pipe.read()
        os.waitpid(child, 0)
        w.ping()


def test_a_background_stops_once() -> None:
    background = BackgroundThread("weir-test")
    background.stop()
    background.stop()
    assert not background.running


def test_calls_under_way_end_when_another_thread_closes() -> None:
    background = BackgroundThread("busy")
    ended: list[BaseException] = []
    waits = threading.Semaphore(0)

    async def for_ever() -> None:
        waits.release()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            while True:
                background.run(for_ever())
        except RuntimeError as error:
            ended.append(error)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    for caller in callers:
        caller.start()
    for _ in callers:
        assert waits.acquire(timeout=10)
    background.stop()
    for caller in callers:
        caller.join(10)
    assert [str(error) for error in ended] == ["the connection is closed: connect again"] * 8


def test_a_call_handed_over_as_the_thread_ends_is_ended_too() -> None:
    """It may come in the very turn of the loop that is its last."""
    background = BackgroundThread("late")
    late: list[threading.Thread] = []
    ended: list[str] = []

    async def nothing() -> None:
        """Never begun."""

    def call() -> None:
        try:
            call_late(background, nothing())
        except RuntimeError as error:
            ended.append(str(error))

    async def last() -> None:
        loop = asyncio.get_running_loop()
        real = loop.close

        def close() -> None:
            late.append(threading.Thread(target=call, daemon=True))
            late[0].start()
            while not calls_of(background):
                late[0].join(0.001)
            real()

        loop.close = close  # type: ignore[method-assign]

    background.stop(last)
    late[0].join(10)
    assert ended == ["the connection is closed: connect again"]


def test_two_may_close_at_once(node: testing.Node) -> None:
    for _ in range(10):
        w = sync.connect(node.url)
        failed: list[BaseException] = []

        def close(w: sync.Client = w, failed: list[BaseException] = failed) -> None:
            try:
                w.close()
            except BaseException as error:
                failed.append(error)

        closers = [threading.Thread(target=close, daemon=True) for _ in range(3)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(10)
            assert not closer.is_alive()
        assert failed == []


def test_a_fork_keeps_no_connection_of_its_parent(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        w.publish("t", b"x")
        with w.consumer("t", cluster="c", lease="10m") as consumer:
            held = next(consumer)
            assert held.value == b"x"
            inside, outside = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(inside, 1)  # until the test is over
                os._exit(0)
        try:
            with w.consumer("t", cluster="c") as other, next(other) as again:
                assert (again.value, again.attempts) == (b"x", 2)
        finally:
            os.write(outside, b"x")
            os.waitpid(child, 0)
            os.close(inside)
            os.close(outside)
