"""Links of a tree are FIFO, also when a sender moves to another processor."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from rigs import fifo
from rigs.trees import missing, tree

COUNT = 5_000
#: Prints for each device of a node: its name, its queues each way, and the mask of processors that
#: take what comes.
_QUEUES = """
for path in /sys/class/net/*; do
  echo "${path##*/}" $(ls "$path/queues") $(cat "$path/queues/rx-0/rps_cpus")
done
"""
TWO_HOSTS = ("--hosts", "2", "--racks", "1", "--spines", "0", "--cores", "0", "--members", "1",
             "--interval-ms", "100", "--place", "switch")  # fmt: skip
RECEIVER, SWITCH = "10.0.0.2:7200", "10.1.0.1:7200"


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_links_have_one_queue_that_one_processor_empties_and_flows_take_all_next_hops() -> None:
    shape = ("--hosts", "2", "--racks", "2", "--spines", "2", "--cores", "0", "--members", "1",
             "--interval-ms", "100")  # fmt: skip
    links = {"host-0": {"eth0"}, "rack-0": {"host-0", "spine-0", "spine-1"},
             "spine-1": {"rack-0", "rack-1"}}  # fmt: skip
    with tree(*shape) as made:
        for node, devices in links.items():
            rows = [line.split() for line in made.run(node, "sh", "-c", _QUEUES).splitlines()]
            queues = {name: row for name, *row in rows}
            assert queues.keys() == {*devices, "lo", "ctl"}
            for device in (*devices, "lo"):
                *names, mask = queues[device]
                assert names == ["rx-0", "tx-0"], device
                assert int(mask.replace(",", ""), 16) == 1, device
            policy = made.run(node, "cat", "/proc/sys/net/ipv4/fib_multipath_hash_policy")
            assert policy == "1\n"


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
