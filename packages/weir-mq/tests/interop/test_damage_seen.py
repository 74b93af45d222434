"""A damaged place in a log: the operator sees it, and a backup steps over it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir.cli.survey import survey
from weir.client.client import connect
from weir.server.interpreter import environment, python
from weir.storage.format.frame import HEADER_SIZE, Kind
from weir.testing.nodes import Node, running_node, start_node

TINY: dict[str, Any] = {"segment_mib": 32, "spares": 0, "shards": 1, "logs": 1, "cache_mib": 0}
ENTRIES, EACH = 12, 50


async def fill(url: str) -> int:
    """Publish entries of so many messages each; return the partition's group."""
    async with connect(url) as client:
        info = await client.create_topic("doors")
        async with client.producer("doors", linger=1) as producer:
            for _ in range(ENTRIES):
                for n in range(EACH):
                    producer.send(b"%d" % n * 20)
                await producer.flush()
    return info.addresses[0].group


def damage(folder: Path, group: int, *entries: int) -> list[tuple[int, int]]:
    """Flip a bit in each of these entries of messages; return their offsets."""
    found = survey(folder, group, 1_000)
    frames = [one for one in found.entries if one.kind is Kind.BATCHES]
    assert len(frames) == ENTRIES
    for entry in entries:
        at = frames[entry].position
        segment = next(s.segment for s in found.segments if s.segment.base <= at)
        path = folder / segment.name
        data = bytearray(path.read_bytes())
        data[at - segment.base + HEADER_SIZE + 200] ^= 4
        path.write_bytes(data)
    return [(frames[entry].first_offset, frames[entry].next_offset) for entry in entries]


def figures(node: Node) -> str:
    (url,) = re.findall(r"http://\S+/metrics", node.said())
    with urllib.request.urlopen(url, timeout=30) as page:
        text: str = page.read().decode()
    return text


def weir(*arguments: str) -> str:
    """Return what a command in a process of its own prints."""
    command = python("weir.cli", *arguments)
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60, check=True)
    return done.stdout.decode()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_damage_is_seen_and_a_backup_holds_all_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, there = tmp_path / "data", tmp_path / "backup"
    with start_node(data, tmp_path, **TINY) as node:
        group = asyncio.run(fill(node.url))
    doctor = ("doctor", "--only", "damage", "--data", str(data))
    assert said(capsys, *doctor)[0] == 0
    holes = damage(data / "log-0", group, 3, 4, 8)
    code, out, _ = said(capsys, *doctor)
    assert code == 1
    assert "log 0 is damaged at position" in out
    assert "weir backup" in out
    with start_node(data, tmp_path, **TINY, listen="127.0.0.1:0") as node:
        assert re.search(r'^weir_scrub_damage\{log="0"\} 3$', figures(node), re.MULTILINE)
        assert said(capsys, *doctor)[0] == 0, "it says that it did not look"
        code, out, err = said(capsys, "backup", "--to", str(there), "--url", node.url)
        behind = str(holes[1][1])
        steps = ("--partition", "0", "--to", behind, "--create", "--url", node.url)
        assert said(capsys, "cluster", "seek", "doors", "crew", *steps)[0] == 0
        over = ("--from", behind, "--partition", "0", "--no-follow", "-n", "1", "--url", node.url)
        for verb in (("tail", "doors", *over), ("sub", "doors", "--cluster", "crew", "-n", "1")):
            url = () if "--url" in verb else ("--url", node.url)
            assert weir(*verb, *url).startswith(f"0/{behind}  ")
    assert code == 1
    assert "not everything" in err
    rows = [(holes[0][0], holes[1][1]), holes[2]]
    for line, (first, behind) in zip(out.splitlines()[1:], rows, strict=True):
        assert f"default/doors/0: offsets {first:,} to {behind - 1:,} are missing" in line
    assert said(capsys, "restore", str(there), "--verify")[0] == 0
    with running_node(**TINY) as other:
        code, out, _ = said(capsys, "restore", str(there), "--to", other.url, "--json")
        restored = json.loads(out)
    assert restored["messages"] == (ENTRIES - 3) * EACH
    (change,) = restored["changes"]
    assert f"from {holes[0][0]:,} on offsets are lower" in change


def test_a_backup_that_fails_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "backup"
    with running_node(**TINY) as node:
        asyncio.run(fill(node.url))

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("weir.cli.backup.manifest.Writing.put", fail)
        code, _, err = said(capsys, "backup", "--to", str(there), "--url", node.url)
    assert (code, "No space left" in err) == (1, True)
    assert not there.exists()
