"""The lag alarm of a network that runs: status and lines of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rigs.late_clock import late_clock
from rigs.loopback import INTERVAL, loopback
from rigs.programs import PATIENCE_SECONDS
from weir_toc import sync
from weir_toc.cli import main


def leader(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", url, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out)["members"][0])


def test_a_process_whose_clock_is_behind_is_named_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loopback(tmp_path) as network, contextlib.ExitStack() as stack:
        members = [stack.enter_context(sync.join(network.url, name=name)) for name in "abc"]
        assert leader(network.url, capsys)["lagging"] == []
        clock = late_clock(members[1])
        for _ in range(8):  # not at once: a process without beacons is taken for dead
            clock.behind += INTERVAL
            time.sleep(1.5 * INTERVAL / 1e9)
        until = time.monotonic() + PATIENCE_SECONDS
        while not (found := leader(network.url, capsys)["lagging"]):
            assert time.monotonic() < until
            time.sleep(0.05)
        (one,) = found
        assert one["link"] == one["hop"] == ["b", "rack-0"]
        assert one["cause"] == "clock"
        assert one["behind_ms"] > 5 * INTERVAL / 1e6
        assert main(["status", network.url]) == 0
        assert "lagging b to rack-0  by " in capsys.readouterr().out
        assert network.controller is not None
        told = asyncio.run_coroutine_threadsafe(network.controller.next_alarm(), network.loop)
        assert told.result(PATIENCE_SECONDS)["hop"] == one["hop"]
        clock.behind = 0
        while (status := leader(network.url, capsys))["lagging"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status["lagged"] >= 1
