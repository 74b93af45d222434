"""Three members as real processes: kill -9, torn tails, lost majorities, and who registered."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rigs.programs import PATIENCE_SECONDS, Programs, programs
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.frames import Frame, addresses_of
from weir_toc.topology import Topology, process_id

SWITCH = Topology.tree(1).switch_of_rack(0).id


def ask(url: str, node: int, *requests: Frame) -> list[Frame]:
    """Send requests as one node, and return their answers."""

    async def body() -> list[Frame]:
        hello = {"op": "hello", "kind": "node", "node": node, "incarnation": 1}
        link = ControlLink(addresses_of(url), hello)
        running = asyncio.create_task(link.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return [await link.request(one) for one in requests]
        finally:
            running.cancel()

    return asyncio.run(body())


def wait_for(crew: Programs, role: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many members answer and one of them leads, or none knows of a leader."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        members = [one for one in crew.status()[1]["members"] if "role" in one]
        if role == "leader":
            is_so = any(one["role"] == "leader" for one in members)
        else:
            is_so = not any(one["majority"] for one in members)
        if len(members) == count and is_so:
            return members
        assert time.monotonic() < until, members
        time.sleep(0.05)


def test_what_was_registered_outlives_kill_9_of_all_members(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "1000")  # a name lapses after 60 s
        crew.leader()
        start = {"op": "start", "host": "127.0.0.1", "port": 9}
        one = {"op": "register", "name": "a", "rack": 0, "nonce": 7}
        started, first, again, other = ask(crew.url, SWITCH, start, one, one, {**one, "nonce": 8})
        assert started["op"] == "done"
        assert (first["process"], first["port"]) == (process_id(0, 1), 9)
        assert again["process"] == first["process"]
        assert other["process"] == process_id(0, 2)  # the first one never joined
        for id in (1, 2, 3):
            crew.kill(f"controller-{id}")
        log = tmp_path / "member-1" / "controller.log"
        log.write_bytes(log.read_bytes() + b"REC\n\xff")  # a record that the kill has torn
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "1000")
        switches = crew.leader()["switches"]
        assert [(at["switch"], at["port"]) for at in switches] == [(SWITCH, 9)]
        (found,) = ask(crew.url, SWITCH, {**one, "nonce": 8})
        assert found["process"] == process_id(0, 2)
        assert "torn_bytes=5" in (tmp_path / "controller-1.out").read_text()


def test_nobody_is_sent_to_an_aggregator_that_is_gone(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id)
        crew.leader()
        start = {"op": "start", "host": "127.0.0.1", "port": 9}
        one = {"op": "register", "name": "a", "rack": 0, "nonce": 7}
        assert ask(crew.url, SWITCH, start)[0]["op"] == "done"
        (answer,) = ask(crew.url, 5, one)
        assert answer["op"] == "refused"
        assert answer["why"].startswith("the aggregator of rack 0 is not connected")


def test_without_a_majority_the_members_say_so(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id)
        leader = crew.leader()["member"]
        crew.kill(f"controller-{leader}")
        second = next(one for one in wait_for(crew, "leader", 2) if one["role"] == "leader")
        assert second["term"] > 1
        assert second["network"]["racks"] == 1
        crew.kill(f"controller-{second['member']}")
        (last,) = wait_for(crew, "none", 1)
        assert last["majority"] is False
        assert "start a majority of the members" in last["problem"]
        assert crew.status()[0] == 3
        crew.controller(leader)
        assert crew.leader()["network"]["racks"] == 1
        assert crew.status()[0] == 0


def test_a_damaged_log_is_refused_by_words(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id)
        crew.leader()
        for id in (1, 2, 3):
            crew.kill(f"controller-{id}")
        log = tmp_path / "member-2" / "controller.log"
        data = bytearray(log.read_bytes())
        data[30] ^= 1
        log.write_bytes(data)
        crew.controller(2)
        assert crew.running["controller-2"].wait() == 1
        assert "is damaged at byte 12" in crew.errors("controller-2")
        assert "A vote may be lost" in crew.errors("controller-2")
        assert log.read_bytes() == data


def test_only_the_leader_says_which_nodes_are_connected(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id)
        crew.leader()
        ask(crew.url, SWITCH, {"op": "start", "host": "127.0.0.1", "port": 9})
        until = time.monotonic() + PATIENCE_SECONDS
        members = wait_for(crew, "leader", 3)
        while not all(one["network"] and one["switches"] for one in members):
            assert time.monotonic() < until, members
            time.sleep(0.05)
            members = wait_for(crew, "leader", 3)
        for one in members:
            (switch,) = one["switches"]
            assert (switch["switch"], switch["port"]) == (SWITCH, 9)
            assert ("connected" in switch) == (one["role"] == "leader")
