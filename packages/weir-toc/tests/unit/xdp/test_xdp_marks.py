"""Marks end to end: the data path of a switch sets them, and the sender behind it slows down."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rigs import marked_senders
from rigs.trees import missing, tree
from rigs.xdp_path import needs_bpf
from weir_toc.endpoint.events import EndpointConfig

COUNT = 600
TWO_HOSTS = ("--hosts", "2", "--racks", "1", "--spines", "0", "--cores", "0", "--members", "1",
             "--interval-ms", "50", "--place", "xdp")  # fmt: skip
#: A window begins with four times the least, and grows as long as nothing is marked.
FIRST_WINDOW = 4 * EndpointConfig().window_min


def sent_through(*options: str) -> dict[str, Any]:
    """Send through a switch in the kernel; return what the sender says of itself."""
    with contextlib.ExitStack() as ended, tree(*TWO_HOSTS, *options) as made:
        paths = os.pathsep.join([str(Path(marked_senders.__file__).parents[1]), *sys.path])

        def start(host: str, role: str) -> subprocess.Popen[str]:
            words = [sys.executable, marked_senders.__file__, role, made.facts["url"], str(COUNT)]
            one = subprocess.Popen([*made.command(host), *words], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "PYTHONPATH": paths})  # fmt: skip
            ended.callback(one.communicate)
            return one

        sender, receiver = start("host-0", "sender"), start("host-1", "receiver")
        assert sender.stdout is not None
        assert receiver.stdout is not None
        said: dict[str, Any] = json.loads(sender.stdout.readline())
        assert json.loads(receiver.stdout.readline()) == COUNT
        for one in (sender, receiver):
            one.communicate()
    return said


@needs_bpf
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_sender_slows_down_by_marks_of_the_data_path() -> None:
    said = sent_through("--drain-mbit", "1", "--mark-bytes", "2000")
    assert said["marked"] > COUNT // 2
    assert 0 < said["window_least"] < FIRST_WINDOW


@needs_bpf
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_without_a_rate_the_data_path_marks_nothing() -> None:
    said = sent_through()
    assert said["marked"] == 0
    assert said["window_least"] > FIRST_WINDOW
