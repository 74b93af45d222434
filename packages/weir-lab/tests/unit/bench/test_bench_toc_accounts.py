"""Logs of processes, compared: each guarantee that one breaks is found."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn, Self, cast

import pytest

from weir_lab.bench.toc.accounts import BEST_EFFORT, RELIABLE, Account, Line, violations
from weir_lab.bench.toc.conformance_worker import Orders, Worker, main
from weir_toc import Fenced, Member, Message, NotSent, SendFailed, TocError
from weir_toc.endpoint.events import Service
from weir_toc.member import EventStream

Logs = dict[int, list[Line]]
#: CRCs of what 1 sends to itself and to 2.
_TO_1, _TO_2 = 11, 12


def whole() -> Logs:
    """1 sends a reliable scattering and one of best effort, whose part to 2 is lost."""
    return {
        1: [
            ["call", 1], ["sent", RELIABLE, 1, 100, {"1": _TO_1, "2": _TO_2}],
            ["call", 2], ["sent", BEST_EFFORT, 2, 101, {"1": _TO_1, "2": _TO_2}],
            ["got", RELIABLE, 100, 1, _TO_1], ["got", BEST_EFFORT, 101, 1, _TO_1],
            ["lost", BEST_EFFORT, 101, 2, "lost"],
        ],
        2: [
            ["got", RELIABLE, 100, 1, _TO_2],
            ["call", 1], ["sent", RELIABLE, 1, 105, {"2": 13}], ["got", RELIABLE, 105, 2, 13],
        ],
    }  # fmt: skip


def judged(logs: Logs, removed: frozenset[int] = frozenset()) -> list[str]:
    return violations({one: Account.read(one, log) for one, log in logs.items()}, removed)


def test_a_whole_run_breaks_nothing() -> None:
    assert judged(whole()) == []


def _swap(logs: Logs) -> None:
    logs[2].append(["got", RELIABLE, 104, 1, 0])


def _twice(logs: Logs) -> None:
    logs[2].append(logs[2][-1])


def _changed(logs: Logs) -> None:
    logs[2][0][-1] = 0


def _invented(logs: Logs) -> None:
    logs[2].append(["got", RELIABLE, 200, 1, 0])


def _missing(logs: Logs) -> None:
    del logs[2][0]


def _untold(logs: Logs) -> None:
    del logs[1][-1]


def _recalled(logs: Logs) -> None:
    logs[1].append(["lost", RELIABLE, 100, 2, "process failed"])


def _not_causal(logs: Logs) -> None:
    logs[2][2][3] = logs[2][3][2] = 100


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_swap, "2: 2 was given (104, 1) behind (105, 2)"),
        (_twice, "2: 2 was given (105, 2) behind (105, 2)"),
        (_changed, "4: 2 was given another payload at 100 of 1"),
        (_invented, "4: 2 was given 200 of 1, which was not sent"),
        (_missing, "[2] did not get the reliable 100 of 1"),
        (_untold, "1 was not told that [2] miss 101"),
        (_recalled, "7: 1 was told that 100 failed, and it was delivered"),
        (_not_causal, "3: 2 stamped 100 below what it had"),
    ],
)
def test_what_is_broken_is_named(spoil: Callable[[Logs], None], says: str) -> None:
    logs = whole()
    spoil(logs)
    assert says in judged(logs)


def test_one_that_was_removed_misses_what_it_likes() -> None:
    logs = whole()
    logs[2] = []
    assert judged(logs) != []
    assert judged(logs, frozenset({2})) == []
    logs[1] = [one for one in logs[1] if one[0] == "got"]  # it was excluded as it sent
    assert judged(logs, frozenset({1, 2})) == []


class RefusedMember:
    """A process to which another one has failed, and that is not told so."""

    async def drain(self, _timeout: float) -> bool:
        return True

    async def send_reliable(self, _parts: object) -> int:
        raise NotSent("nothing was sent, as of process 2: process failed")

    def describe(self) -> dict[str, int]:
        return {"open": 7}


def test_a_run_that_does_not_settle_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_lab.bench.toc.conformance_worker.SETTLE_SECONDS", 0.05)
    orders = Orders("", "a", 0, ["a", "b"], 1, 1, 1, 0, 1, "")
    log = io.StringIO()
    worker = Worker(cast(Member, RefusedMember()), orders, [1, 2], log)
    due = r"\[1, 2\] have neither ended.*process 2: process failed\. \{'open': 7\}"
    with pytest.raises(TocError, match=due):
        asyncio.run(worker.settle())
    call, refused = (json.loads(line) for line in log.getvalue().splitlines()[:2])
    assert call == ["call", 1]
    assert refused == ["refused", RELIABLE, 1, "nothing was sent, as of process 2: process failed"]


class SlowMember:
    """A process alone, whose messages to itself take long.

    Of best effort, the first one comes, and counts as lost as all of its ACKs are; so does the one
    with stamp 3, which does not come.
    """

    process = 1

    def __init__(self) -> None:
        self.best_effort_events: asyncio.Queue[object] = asyncio.Queue()
        self.reliable_events: asyncio.Queue[object] = asyncio.Queue()
        self.sent = 0

    async def drain(self, _timeout: float) -> bool:
        return True

    async def send(self, parts: list[tuple[int, bytes]]) -> int:
        stamp = self._stamp()
        if stamp in (1, 3):
            self._come_later(SendFailed(stamp, 1, "lost"))
        if stamp != 3:
            self._come_later(Message(stamp, 1, parts[0][1]))
        return stamp

    async def send_reliable(self, parts: list[tuple[int, bytes]]) -> int:
        stamp = self._stamp()
        self.reliable_events.put_nowait(Message(stamp, 1, parts[0][1]))
        return stamp

    def _come_later(self, event: object) -> None:
        asyncio.get_running_loop().call_later(0.1, self.best_effort_events.put_nowait, event)

    def _stamp(self) -> int:
        self.sent += 1
        return self.sent


async def events(queue: asyncio.Queue[object]) -> AsyncIterator[object]:
    while True:
        yield await queue.get()


def test_a_run_settles_when_all_that_it_sent_to_itself_is_told() -> None:
    me, log = SlowMember(), io.StringIO()

    async def settle() -> None:
        orders = Orders("", "a", 0, ["a"], 1, 1, 1, 0, 1, "")
        worker = Worker(cast(Member, me), orders, [1], log)
        takers = [
            asyncio.create_task(worker.take(cast(EventStream, events(queue)), service))
            for queue, service in (
                (me.best_effort_events, Service.BEST_EFFORT),
                (me.reliable_events, Service.RELIABLE),
            )
        ]
        await worker.send(Service.BEST_EFFORT, [(1, b"a")])
        await asyncio.wait_for(worker.settle(), 10)
        for taker in takers:
            taker.cancel()

    asyncio.run(settle())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line[:3] for line in lines if line[0] == "got" and line[1] == BEST_EFFORT] == [
        ["got", BEST_EFFORT, 1], ["got", BEST_EFFORT, 4],
    ]  # fmt: skip
    assert [line[2] for line in lines if line[0] == "lost"] == [1, 3]
    assert violations({1: Account.read(1, lines)}) == []


class EarlyMember:
    """A process that is excluded before the others are here, then after all are ready."""

    made = 0

    def __init__(self, *_arguments: object) -> None:
        EarlyMember.made += 1
        self.process = EarlyMember.made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return

    async def wait_for(self, *_names: str) -> None:
        if self.process == 1:
            raise Fenced("excluded")

    def __getattr__(self, name: str) -> NoReturn:
        raise Fenced("excluded")

    def describe(self) -> dict[str, int]:
        return {}


def test_one_that_is_excluded_before_all_are_ready_joins_again_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EarlyMember, "made", 0)
    monkeypatch.setattr("weir_lab.bench.toc.conformance_worker.Member", EarlyMember)
    monkeypatch.setattr(sys, "stdin", io.StringIO("[2, 9]\n"))
    asyncio.run(main(Orders("", "a", 0, ["a", "b"], 1, 1, 1, 0, 1, str(tmp_path / "log"))))
    ready, done = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert ready == ["ready", 2]
    assert done == ["done", {"fenced": 1, "failed": 0, "excluded": 1}]
