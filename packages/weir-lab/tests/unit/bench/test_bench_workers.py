"""`weir bench workers`: a small run of the real thing, and how full speed is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from weir.cli.main import main
from weir_lab.bench.consumers.workers import Settings, fill, full_speed, work
from weir_lab.bench.flow import FlowFailed
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.sides.own import Own, running_own
from weir_lab.bench.sides.working import Mode, OwnWorkers, Taken


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with running_own() as side:
        yield side


def test_workers_take_each_message_once_and_each_key_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--messages", "3001", "--batched", "20001", "--keys", "40", "--workers", "4")
    assert main(["bench", "workers", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.workers/1"
    parts = [found[name] for name in ("shared", "shared_batches", "keyed", "keyed_batches")]
    assert [part["messages"] for part in parts] == [3_001, 20_001] * 2
    assert (found["lost"], found["repeated"], found["corrupt"], found["reordered"]) == (0, 0, 0, 0)
    assert found["batched_per_s"] == pytest.approx(20_001 / found["shared_batches"]["seconds"])
    costs = [part["client_us"] + part["server_us"] for part in parts]
    assert found["keyed_times"] == pytest.approx(costs[2] / costs[0])
    assert found["keyed_batches_times"] == pytest.approx(costs[3] / costs[1])


def test_the_time_includes_that_of_the_last_ack(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])

    async def acked(self: OwnWorkers) -> bool:
        await asyncio.sleep(0.3)
        return next(answers)

    async def test() -> None:
        monkeypatch.setattr(OwnWorkers, "_acked", acked)
        await fill(own, "acked", [10], 100)
        settings = Settings(workers=1, keys=1, messages=10)
        found = await work(own, "acked", [10], settings, "shared", by_message=False)
        assert found.seconds >= 0.6
        assert next(answers, None) is None

    run(test())


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_what_is_timed_ends_with_all_acks(own: Own, mode: Mode) -> None:
    async def test() -> None:
        settings = Settings(workers=3, keys=7, messages=700)
        await fill(own, mode, [100] * 7, 100)
        first = await work(own, mode, [100] * 7, settings, mode, by_message=True)
        assert (first.lost, first.repeated, first.stale) == (0, 0, 0)
        # All is acked, so that there is nothing left to take.
        again = Settings(workers=3, keys=7, messages=700, deadline_s=0.5)
        with pytest.raises(FlowFailed, match=r"0 of 700 messages .* longer --deadline"):
            await work(own, mode, [100] * 7, again, mode, by_message=True)

    run(test())


def test_what_was_taken_twice_or_late_is_told() -> None:
    taken = Taken(5)
    values = Block(100, 4).values_of(0, 0, 4)
    for one in (values[0], values[2], values[1], values[2]):
        taken.value(one)
    assert not taken.complete.is_set()
    taken.values([b"x" * 100])
    assert taken.complete.is_set()
    checker = taken.check([4], 100)
    assert (checker.lost, checker.repeated, checker.reordered, checker.corrupt) == (1, 1, 1, 1)


def at_a_rate(slow_s: float, slow: float) -> list[tuple[float, int]]:
    """Return samples of 10,000 messages a second, and of fewer before."""
    found, count = [], 0.0
    for number in range(1, 301):
        at = number / 100
        count += 100 if at > slow_s else slow
        found.append((at, int(count)))
    return found


@pytest.mark.parametrize(
    ("slow_s", "slow", "least", "most"),
    [(0.0, 0, 0.0, 0.0), (0.4, 0, 0.35, 0.4), (0.4, 10, 0.35, 0.4), (0.4, 90, 0.0, 0.0)],
)
def test_full_speed_is_told_by_the_steady_rate(
    slow_s: float, slow: float, least: float, most: float
) -> None:
    found = full_speed(at_a_rate(slow_s, slow))
    assert found is not None
    assert least <= found <= most


def test_a_run_that_is_too_short_tells_no_full_speed() -> None:
    assert full_speed([]) is None
    assert full_speed([(0.01, 500), (0.02, 1_000)]) is None


def test_what_cannot_be_measured_is_wrong_usage() -> None:
    assert main(["bench", "workers", "--size", "15"]) == 2
    assert main(["bench", "workers", "--workers", "0"]) == 2
    assert main(["bench", "workers", "--keys", "9", "--messages", "8"]) == 2
