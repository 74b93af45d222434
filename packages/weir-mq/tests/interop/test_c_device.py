"""The C reference device: compiled, checked against the golden frames, run against a whole node."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.device import Client

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "examples" / "device-c"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("make") is None:
        packages = ("gcc", "libc6-dev", "make")
        subprocess.run([ROOT / "scripts" / "apt-install", *packages], check=True, timeout=110)
    out = tmp_path_factory.mktemp("device-c")
    make = ("make", "-s", "-C", str(SOURCE), f"OUT={out}", "CC=gcc", "all")
    done = subprocess.run(make, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Run `weir serve`, as a user would."""
    command = (sys.executable, "-m", "weir.cli", "serve", "--port", "0")
    with (
        (tmp_path / "node.log").open("w") as log,
        subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path,
        ) as node,
    ):  # fmt: skip
        try:
            assert node.stdout is not None
            line = node.stdout.readline()
            found = re.search(r":(\d+)", line)
            assert found, f"{line!r}\n{(tmp_path / 'node.log').read_text()}"
            yield int(found[1])
        finally:
            node.terminate()
            node.wait(30)


def create_topic(port: int, partitions: int) -> None:
    async def create() -> None:
        async with weir.connect(f"weir://127.0.0.1:{port}") as client:
            await client.create_topic("locks", partitions=partitions)

    asyncio.run(create())


def demo(built: Path, port: int, *arguments: str) -> list[str]:
    command = [str(built / "demo"), "127.0.0.1", str(port), "locks", "crew", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_every_golden_frame_is_encoded_and_decoded_in_c(built: Path) -> None:
    command = [str(built / "check_frames"), str(ROOT / "docs" / "device-frames.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    frames = (ROOT / "docs" / "device-frames.txt").read_text().splitlines()
    count = sum(not line.startswith("#") for line in frames)
    assert done.stdout == f"{count} frames checked, 0 failures\n"


def test_the_checker_finds_a_changed_frame(built: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "device-frames.txt").read_text()
    wrong = tmp_path / "frames.txt"
    wrong.write_text(text.replace("offset=42", "offset=43", 1))
    command = [str(built / "check_frames"), str(wrong)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


def test_the_c_device_publishes_once_and_receives(built: Path, port: int) -> None:
    create_topic(port, partitions=2)
    lines = demo(built, port, "7", "1", "5", "3")
    assert [line.split()[1] for line in lines if line.startswith("sent")] == list("01234")
    values = sorted(line.split(" ", 2)[2] for line in lines if line.startswith("got"))
    assert values == [f"lock 7 event {n}" for n in range(5)], (
        "one was sent twice, and is there once"
    )
    assert lines[-1] == "done"
    with Client("127.0.0.1", port, hub=9, boot=1, topic="locks") as other:
        assert other.subscribe("crew", "locks", partition=0xFFFE).take(0.1) == [], "all is acked"


def test_a_boot_count_that_was_used_before_is_refused(built: Path, port: int) -> None:
    create_topic(port, partitions=1)
    demo(built, port, "7", "2", "1")
    command = [str(built / "demo"), "127.0.0.1", str(port), "locks", "crew", "7", "1", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "raise it" in done.stderr
