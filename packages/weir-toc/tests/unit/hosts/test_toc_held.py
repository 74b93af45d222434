"""The alarm of old commit barriers in a network that runs: status and lines of the controller."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rigs.loopback import INTERVAL, loopback
from rigs.programs import PATIENCE_SECONDS
from weir_toc import sync
from weir_toc.cli import main
from weir_toc.packet import OVERHEAD_BYTES


def leader(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", url, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out)["members"][0])


def take_beacons_only(member: sync.Member) -> None:
    """Let a process lose all that comes for it but beacons, by the network and the controller."""
    endpoint = member._running.process._endpoint
    assert endpoint is not None
    receive = endpoint.receive_runs

    def beacons(now: int, runs: Iterable[tuple[bytes, int]]) -> None:
        receive(now, [one for one in runs if one[1] <= OVERHEAD_BYTES])

    endpoint.receive_runs = beacons  # type: ignore[assignment, method-assign]
    endpoint.forwarded = lambda *_: None  # type: ignore[method-assign]


def test_who_holds_commit_barriers_back_is_named_with_whom_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        loopback(tmp_path) as network,
        sync.join(network.url, name="a") as a,
        sync.join(network.url, name="b") as b,
        sync.join(network.url, name="c") as c,
    ):
        a.send_reliable([(b.process, b"comes"), (c.process, b"comes")])
        found = leader(network.url, capsys)
        assert (found["held"], found["holds"]) == ([], 0)
        take_beacons_only(b)
        a.send_reliable([(b.process, b"is lost"), (c.process, b"comes")])
        until = time.monotonic() + PATIENCE_SECONDS
        while not (found := leader(network.url, capsys))["held"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        (one,) = found["held"]
        assert (one["process"], one["waits_for"]) == ("a", "b")
        assert one["cause"] == "no acknowledgement"
        assert one["behind_ms"] > 5 * INTERVAL / 1e6
        assert found["holds"] == 1
        assert main(["status", network.url]) == 0
        assert "held by a  by " in (text := capsys.readouterr().out)
        assert "waits for b  cause no acknowledgement" in text
        assert network.controller is not None
        told = []
        while not told or not told[-1]["over"]:  # b fails, as it answers nothing
            alarm = network.controller.next_alarm()
            event, facts = asyncio.run_coroutine_threadsafe(alarm, network.loop).result(
                PATIENCE_SECONDS
            )
            if event == "held":
                told.append(facts)
        assert [(each["process"], each["over"]) for each in told] == [("a", False), ("a", True)]
        assert leader(network.url, capsys)["held"] == []
