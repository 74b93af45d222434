"""The alarm of old commit barriers in a network that runs: status and lines of the controller."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rigs.deaf_process import take_beacons_only
from rigs.loopback import INTERVAL, loopback
from rigs.programs import PATIENCE_SECONDS
from weir_toc import sync
from weir_toc.cli import main


def leader(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", url, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out)["members"][0])


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
