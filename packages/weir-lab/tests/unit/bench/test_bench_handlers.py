"""`weir bench handlers`: a small run of the real thing, and what is told when it goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from weir.cli.main import main
from weir_lab.bench.consumers.handlers import Settings, _Run
from weir_lab.bench.flow import FlowFailed, Sink
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.payload import Block, Checker
from weir_lab.bench.sides.own import Own, running_own


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with running_own() as side:
        yield side


def test_every_message_is_handled_pulled_and_acked_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "handlers", "--messages", "3001", "--pulled", "20001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.handlers/1"
    assert (found["messages"], found["pulled"]) == (3_001, 20_001)
    assert (found["lost"], found["repeated"], found["corrupt"]) == (0, 0, 0)
    assert found["messages_per_s"] == pytest.approx(3_001 / found["seconds"])
    assert found["pulled_of_read"] == pytest.approx(found["pulled_per_s"] / found["read_per_s"])


def test_what_takes_too_long_is_told(own: Own) -> None:
    async def never(topic: str, sink: Sink) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        with pytest.raises(FlowFailed, match=r"0 of 5 messages .* longer --deadline"):
            await _Run(own, Settings(deadline_s=0.01)).timed("t", 5, never)

    run(test())


def test_what_cannot_be_measured_is_wrong_usage() -> None:
    assert main(["bench", "handlers", "--size", "15"]) == 2
    assert main(["bench", "handlers", "--messages", "0"]) == 2


def test_messages_one_by_one_are_checked_as_columns_are() -> None:
    checker = Checker([4], 100)
    values = Block(100, 4).values_of(0, 0, 4)
    for value in (values[0], values[2], values[1], values[2], b"x" * 100):
        checker.take_one(value)
    assert checker.received == 5
    assert (checker.lost, checker.repeated, checker.reordered, checker.corrupt) == (1, 1, 1, 1)
