"""What is not bounded by the user is bounded by the client: waiting, and memory."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import weir
from rigs.batches import opened_batches
from rigs.consuming import take
from weir import sync, testing
from weir.client.connection.system import in_daemon, read_some
from weir.errors import Disconnected


def test_waiting_for_a_confirm_ends(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("t")
            async with (
                weir.connect(broker.url, request_timeout=0.5, retry=weir.Backoff(0.001, 0.01)) as w,
                asyncio.timeout(20),
            ):
                producer = await w.producer("t", linger=0).open()
                await broker.stop()
                sent = producer.send(b"one")
                (handed,) = await producer.send_many([b"two"])
                for waiting in (sent, handed, sent.wait(), handed.wait()):
                    with pytest.raises(Disconnected, match="was confirmed for"):
                        await waiting
                await broker.start()
                assert (await sent).offset == 0, "it is still tried"
                assert (await handed).offset == 1
                await producer.close()

    asyncio.run(scenario())


def test_a_program_that_ends_does_not_wait_for_a_read() -> None:
    inside, outside = os.pipe()
    source = os.fdopen(inside, "rb", buffering=0)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon(lambda: source.read(1)), 0.01)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "weir read"]
        assert thread.daemon
        os.close(outside)
        thread.join(10)
        assert await in_daemon(lambda: source.read(1)) == b""
        with pytest.raises(ZeroDivisionError):
            await in_daemon(lambda: 1 // 0)

    asyncio.run(scenario())
    source.close()


_PUBLISHER = """
import sys
from weir import sync
with sync.connect(sys.argv[1]) as w, w.producer("t") as producer:
    print("reading", flush=True)
    producer.publish_from(sys.stdin.buffer)
"""


def test_ctrl_c_ends_a_program_that_publishes_from_a_pipe() -> None:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("t")
        command = [sys.executable, "-c", _PUBLISHER, node.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == b"reading\n"
            program.stdin.write(b"a part")
            program.stdin.flush()
            program.send_signal(signal.SIGINT)
            # The pipe stays open: the read itself never ends.
            program.wait(20)
            assert program.stderr is not None
            told = program.stderr.read()
            assert told.endswith(b"KeyboardInterrupt\n"), told
            assert program.returncode == -signal.SIGINT


def test_some_of_a_file_is_read_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(b"abcdef")
    for buffering in (-1, 0):
        with path.open("rb", buffering=buffering) as source:
            assert source.read(1) == b"a"
            assert b"".join(iter(lambda: read_some(source, 2), b"")) == b"bcdef"
    assert read_some(io.BytesIO(b"xyz"), 2) == b"xy"


@pytest.fixture
def only_new_objects() -> None:
    """Let `gc` see what is made from here on alone: there are millions of objects in a long run.

    What is frozen stays so, as all that was collected is: nothing of it may be garbage.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("how", ["read", "pick", "consume"])
def test_no_batch_stays_open_behind_the_one_in_hand(how: str, only_new_objects: None) -> None:
    """An opened batch may be a thousand times as large as what was fetched."""

    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(20):
            await w.create_topic("t")
            async with w.producer("t", compression="zstd") as producer:
                for _ in range(6):
                    await producer.send_many([bytes(1_000)] * 3, keys=[b"a", b"b", b"c"])
            before = opened_batches()
            most = 0
            if how == "consume":
                async with w.consumer("t", cluster="c") as consumer:
                    for _ in range(18):
                        await take(consumer)
                        most = max(most, opened_batches() - before)
            else:
                reader = w.reader("t", follow=False, key="b" if how == "pick" else None)
                async for _ in reader:
                    most = max(most, opened_batches() - before)
            # Messages of a consumer are split at once, and their batch is let go of.
            assert (how != "consume") <= most <= 2

    asyncio.run(scenario())
