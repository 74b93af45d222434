"""`weir bench readers`: a small run of the real thing, and readers that lack messages."""

from __future__ import annotations

import asyncio
import json

import pytest

from weir.cli.main import main
from weir.client.client import connect
from weir_lab.bench.consumers.reading import Plan, Read
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.producers import Crew, ProducersFailed
from weir_lab.bench.sides.own import Own, running_own


def test_each_reader_gets_every_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "readers", "--readers", "3", "--messages", "20001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.readers/1"
    assert (found["readers"], found["messages"]) == (3, 20_001)
    assert found["all_per_s"] == pytest.approx(3 * found["messages_per_s"])
    assert found["messages_per_s"] == pytest.approx(20_001 / found["seconds"])
    assert found["fastest_per_s"] >= found["messages_per_s"]
    assert (found["lost"], found["repeated"], found["reordered"], found["corrupt"]) == (0, 0, 0, 0)


async def filled(own: Own, topic: str, *sequences: int) -> None:
    """Publish messages of one producer."""
    await own.prepare(topic)
    block = Block(100, 1)
    values = [block.values_of(0, sequence, 1)[0] for sequence in sequences]
    async with connect(own.url) as client, client.producer(topic) as producer:
        await producer.send_many(values)
        await producer.flush()


async def read_by(own: Own, topic: str, count: int) -> Read:
    """Let two readers in one process expect `count` messages."""
    plan = Plan(own.url, topic, 2, [count], 100, timeout_s=1.0)
    async with Crew("weir_lab.bench.consumers.reading", [plan], Read) as crew:
        await crew.ready()
        crew.go()
        (done,) = await asyncio.wait_for(crew.done(), 30)
    return done


def test_what_is_lost_or_repeated_is_counted_for_each_reader() -> None:
    with running_own() as own:

        async def test() -> None:
            await filled(own, "wrong", 0, 1, 1, 3)
            done = await read_by(own, "wrong", 4)
            assert (done.lost, done.repeated, done.reordered, done.corrupt) == (2, 2, 0, 0)
            with pytest.raises(ProducersFailed, match="a reader got 4 of 5 messages within 1 s"):
                await read_by(own, "wrong", 5)

        run(test())


def test_a_number_of_readers_is_refused_before_a_node_starts() -> None:
    assert main(["bench", "readers", "--readers", "0"]) == 2
