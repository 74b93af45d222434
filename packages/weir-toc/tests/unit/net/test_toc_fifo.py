"""Links of a tree are FIFO, also when a sender moves to another processor."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from rigs import fifo
from rigs.trees import missing, tree

COUNT = 5_000
TWO_HOSTS = ("--hosts", "2", "--racks", "1", "--spines", "0", "--cores", "0", "--members", "1",
             "--interval-ms", "100", "--place", "switch")  # fmt: skip
RECEIVER, SWITCH = "10.0.0.2:7200", "10.1.0.1:7200"


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_beacon_follows_all_that_was_sent_before_it_by_another_processor() -> None:
    with contextlib.ExitStack() as ended, tree(*TWO_HOSTS) as made:

        def start(node: str, *words: str) -> subprocess.Popen[str]:
            one = subprocess.Popen([*made.command(node), sys.executable, fifo.__file__, *words],
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
            # With the tree, which is taken down before.
            ended.callback(one.communicate)
            return one

        receiver = start("host-1", "receiver", str(COUNT), RECEIVER)
        switch = start("rack-0", "switch", SWITCH, RECEIVER)
        for one in (receiver, switch):
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        start("host-0", "sender", str(COUNT), RECEIVER, SWITCH)
        assert receiver.stdout is not None
        assert [*map(int, receiver.stdout.readline().split())] == [COUNT, 0]
