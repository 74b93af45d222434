"""The client without async, against a node in memory."""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator

import pytest

from weir import sync, testing
from weir.client.background import Background
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
            assert (batch.wait().offset, batch.count, batch.settled) == (2, 2, True)
        values = [b"hello", b"one", b"two", b"three"]
        with w.reader("t", follow=False) as reader:
            assert reader.positions == {0: 0, 1: 0}
            assert [message.value for message in reader] == values
            assert reader.positions[receipt.partition] == 4
        batches = w.reader("t", follow=False).batches()
        assert [value for batch in batches for value in batch.values()] == values
        with w.consumer("t", cluster="c") as consumer:
            assert [next(consumer).value for _ in values] == values
        with w.consumer("t", cluster="c") as consumer:
            # The last of them was not acked: nobody asked for the one behind it.
            grant = next(consumer.batches())
            assert [message.value for message in grant.messages()] == values[3:]
            assert consumer.ack(grant)
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
        with w.consumer("t", cluster="c", value_bytes_max=0) as consumer:
            assert next(consumer).read() == value
        with pytest.raises(TooLarge, match="stream it"):
            first.value  # noqa: B018  # the look-up is what raises


def test_errors_come_without_the_other_threads_frames(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        with pytest.raises(UnknownTopic) as caught:
            w.describe("nowhere")
        files = {frame.filename for frame in traceback.extract_tb(caught.tb)}
        assert {os.path.basename(name) for name in files} == {
            "test_sync_client.py",
            "sync.py",
            "background.py",
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
    background = w._background
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
    background = Background("weir-test")
    background.stop()
    background.stop()
    assert not background.running
