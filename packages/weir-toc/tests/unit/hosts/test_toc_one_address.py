"""A network of three members that is known by the address of a follower alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import weir_toc
from rigs.programs import PATIENCE_SECONDS, programs
from weir_toc.cli import main


def test_a_follower_leads_to_the_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def body(url: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), weir_toc.join(url, name="a") as me:
            await me.wait_for("a")

    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "100")
        leader = crew.leader()["member"]
        for port in (port for id, port in enumerate(crew.ports, 1) if id != leader):
            url = f"toc://127.0.0.1:{port}"
            assert main(["status", url, "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert told["majority"]
            assert [one["role"] for one in told["members"]] == ["follower", "leader"]
        crew.start("aggregator", "-m", "weir_toc", "aggregator", url)
        asyncio.run(body(url))
