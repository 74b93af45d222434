"""The rate run: what its sender is told, what the bench makes of it, and processes that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from weir.cli.main import main
from weir_lab.bench.toc.crew import CrewFailed
from weir_lab.bench.toc.rate import RateSettings, measured
from weir_lab.bench.toc.rate_worker import BATCH, CALLS, RateOrders, Sender, packed, unpacked
from weir_toc import Member, Message, SendBufferFull, SendFailed
from weir_toc.endpoint.events import Service

#: What a program may leave unread in these tests, and how many of its messages fail.
UNREAD_MAX, FAILED = CALLS * BATCH, 5_000
MESSAGES = 6_000
ME, RECEIVER = 1, 2


class Stream:
    """Events of one service."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[object] = asyncio.Queue()

    async def batch(self) -> list[object]:
        found = [await self.events.get()]
        while not self.events.empty():
            found.append(self.events.get_nowait())
        return found


class LossyMember:
    """Gives each message a stamp; the first ones fail, and the very first never leaves."""

    process = ME
    names = {"receiver": RECEIVER}  # noqa: RUF012

    def __init__(self) -> None:
        self.best_effort = Stream()
        self.reliable = Stream()
        self.marks = 0
        self._stamp = 0

    async def send_many(self, scatterings: Sequence[object]) -> list[int]:
        if self.best_effort.events.qsize() > UNREAD_MAX:
            raise SendBufferFull("read the events")
        stamps = []
        for _ in scatterings:
            stamps.append(self._stamp)
            if 0 < self._stamp < FAILED:
                self.best_effort.events.put_nowait(SendFailed(self._stamp, RECEIVER, "lost"))
            self._stamp += 1
        await asyncio.sleep(0)
        return stamps

    async def send(self, parts: Sequence[tuple[int, bytes]]) -> int:
        assert parts[0][0] == ME
        self.marks += 1
        if self.marks > 1:  # the first one is lost
            self.best_effort.events.put_nowait(Message(self._stamp, ME, parts[0][1]))
        return self._stamp

    async def send_reliable(self, parts: Sequence[tuple[int, bytes]]) -> int:
        assert parts == [(RECEIVER, b"end")]
        return self._stamp

    async def drain(self, _timeout: float) -> bool:
        return True


def test_failures_are_read_while_messages_are_sent_and_all_before_the_end() -> None:
    orders = RateOrders("", "", "sender", [], MESSAGES, 1, 64, 0.1)
    me = LossyMember()
    found = asyncio.run(Sender(cast(Member, me), orders).run(Service.BEST_EFFORT, True))
    assert unpacked(found["told"]) == b"\1" * FAILED + b"\0" * (MESSAGES - FAILED)
    assert me.marks == 2


def step(told: bytes, seen: bytes, misplaced: int = 0) -> dict[str, dict[str, Any]]:
    received = {"received": sum(seen), "misplaced": misplaced, "seen": packed(seen), "seconds": 1,
                "cpu_s": 0, "latencies": [1]}  # fmt: skip
    return {"sender": {"told": packed(told), "cpu_s": 0}, "receiver": received}


def test_a_message_that_is_lost_without_a_word_is_not_hidden_by_one_that_was_told_lost() -> None:
    settings = RateSettings(messages=4, lone=2)
    flood = step(told=bytes([1, 0, 0, 0]), seen=bytes([1, 1, 1, 0]), misplaced=3)
    found = measured("reliable", settings, flood, step(told=bytes([0, 1]), seen=bytes([1, 0])))
    assert (found.received, found.failed, found.lost, found.misplaced) == (3, 1, 1, 3)
    lone = step(told=bytes(2), seen=bytes([0, 1]), misplaced=1)
    found = measured("reliable", settings, flood, lone)
    assert (found.lost, found.misplaced) == (2, 4)


def test_a_process_that_fails_is_a_row_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise CrewFailed("sender ended: Fenced: planted")

    monkeypatch.setattr("weir_lab.bench.toc.rate._start", failing)
    assert main(["bench", "toc", "rate"]) == 1
    printed = capsys.readouterr().out
    assert "MISPLACED" in printed
    assert "reliable could not be measured: sender ended: Fenced: planted" in printed
    assert main(["bench", "toc", "rate", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["interval_ms"] == 5
    assert [one["problem"] for one in found["services"]] == ["sender ended: Fenced: planted"] * 2
