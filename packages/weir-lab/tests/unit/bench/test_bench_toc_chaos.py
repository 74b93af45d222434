"""Kills, stops and cuts on a packet network: their judge by transcripts, short real runs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar, cast

import pytest

from rigs.drawn_mutants import one_in
from weir.cli.main import main
from weir_lab.bench.toc.cables import Cable
from weir_lab.bench.toc.chaos import (
    RACKS,
    SPINES,
    STOPS,
    Chaos,
    Round,
    Settings,
    all_heard_at,
    between_racks,
    result_of,
)
from weir_lab.bench.toc.chaos_worker import Orders, Worker
from weir_lab.bench.toc.crew import Crew, Shape
from weir_lab.bench.toc.failures import Trace, violations
from weir_toc import Fenced, Member, Message
from weir_toc.endpoint.events import Service
from weir_toc.node import SILENT_INTERVALS
from weir_toc.topology import Link, Topology, process_id, switch_id

BE, R = (service.value for service in (Service.BEST_EFFORT, Service.RELIABLE))
A, B, DEAD = 1, 2, 3
#: The dead process failed at this stamp, and was killed at this time.
STAMP, KILLED = 50, 1_000
Line = list[object]
Logs = dict[int, list[Line]]


def got(service: int, stamp: int, source: int, to: list[int], number: int = 7) -> Line:
    return ["got", service, stamp, source, number, 1_500, to, 2_000]


def sound() -> Logs:
    """A and B go on; the third one sent to both at 40 and at 60, and failed at 50."""
    failed: Line = ["failed", DEAD, STAMP, 3_000]
    everybody = [A, B, DEAD]
    return {
        A: [["joined", A, 1], ["sent", R, 40, 7, [A, B]], got(R, 40, A, [A, B]),
            got(R, 45, DEAD, everybody), failed, ["sent", R, 70, 8, [B, DEAD]],
            ["lost", R, 70, DEAD, "process failed"], ["end"]],
        B: [["joined", B, 2], got(R, 40, A, [A, B]), got(R, 45, DEAD, everybody), failed,
            ["sent", R, 80, 9, [B]], got(R, 80, B, [B], 9), got(BE, 30, A, [B], 3),
            ["sent", BE, 31, 4, [A]], ["end"]],
        DEAD: [["joined", DEAD, 3], ["sent", R, 45, 7, everybody], got(R, 45, DEAD, everybody),
               ["sent", R, 60, 8, [A, B]]],
    }  # fmt: skip


def judged(logs: Logs, stopped: tuple[int, ...] = ()) -> list[str]:
    logs[A].insert(1, ["sent", BE, 30, 3, [B]])
    traces = []
    for process, lines in logs.items():
        trace = Trace(f"w{process}")
        for line in lines:
            trace.take(json.dumps(line))
        traces.append(trace)
    return violations(traces, {DEAD: KILLED}, stopped)


def test_what_went_well_breaks_nothing() -> None:
    assert judged(sound()) == []


@pytest.mark.parametrize(
    ("name", "process", "at", "line"),
    [
        ("I4", A, 4, got(R, 39, DEAD, [A], 6)),
        ("I8", A, 4, got(R, 46, B, [A], 6)),  # never sent
        ("I8", A, 2, got(R, 40, A, [B])),  # to another one
        ("I8", A, 2, got(R, 40, A, [A, B], 6)),  # another payload
        ("I10", B, 2, None),  # one of two lacks it
        ("I11", B, 3, ["failed", DEAD, STAMP + 1, 3_000]),
        ("I12", A, 6, None),  # nobody told its sender
        ("I12", A, 7, ["lost", R, 40, B, "process failed"]),  # and it was delivered
        ("I13", B, 3, None),  # not told
        ("I13", B, 4, ["failed", DEAD, STAMP, 3_100]),  # twice
        ("I13", B, 7, ["failed", A, 90, 3_100]),  # one that goes on
    ],
)
def test_each_broken_promise_is_found(name: str, process: int, at: int, line: Line | None) -> None:
    """A line is put in place of another one, in front of it, or that one is taken away."""
    logs = sound()
    if line is None:
        del logs[process][at]
    else:
        if logs[process][at][0] == line[0] and name != "I13":
            del logs[process][at]
        logs[process].insert(at, line)
    found = judged(logs)
    assert any(one.startswith(name) for one in found), found


def test_what_a_failed_process_sent_above_its_stamp_is_nobody_s() -> None:
    logs = sound()
    for process in (A, B):
        place = next(at for at, line in enumerate(logs[process]) if line[0] == "failed")
        logs[process].insert(place + 1, got(R, 60, DEAD, [A, B], 8))
    assert any(one.startswith("I11") for one in judged(logs))


def test_what_a_failed_process_sent_up_to_its_stamp_is_everybody_s() -> None:
    logs = sound()
    for process in (A, B):
        logs[process] = [line for line in logs[process] if line[:4] != ["got", R, 45, DEAD]]
    logs[DEAD] = [line for line in logs[DEAD] if line[0] != "got"]
    assert any(one.startswith("I11") for one in judged(logs))


def test_who_was_stopped_and_goes_on_delivers_what_others_do() -> None:
    def settled(why: str = "join again") -> Logs:
        logs = sound()
        logs[DEAD] += [["excluded", 4_000, why]]
        return logs

    assert judged(settled(), (DEAD,)) == []
    without = settled()
    without[DEAD].remove(got(R, 45, DEAD, [A, B, DEAD]))
    assert any(one.startswith("I10") for one in judged(without, (DEAD,)))
    assert judged(without) == []  # of one that was killed nobody knows
    beyond = settled()
    beyond[DEAD].insert(-1, got(R, 60, DEAD, [A, B, DEAD], 8))
    assert any(one.startswith("I10") or one.startswith("I11") for one in judged(beyond, (DEAD,)))
    lost = settled("join again. What it held of reliable messages is lost: nobody told")
    assert any(one.startswith("I10") for one in judged(lost, (DEAD,)))
    goes_on = settled()
    goes_on[DEAD].pop()
    assert any(one.startswith("I13") for one in judged(goes_on, (DEAD,)))


def test_nothing_reliable_is_lost_between_those_that_go_on() -> None:
    logs = sound()
    logs[B].remove(got(R, 80, B, [B], 9))
    logs[B].insert(-1, ["lost", R, 80, B, "process failed"])
    assert any(one.startswith("I9") for one in judged(logs))
    # Who fails is told of all that it still tries to send.
    failing = sound()
    failing[DEAD].append(["lost", R, 60, A, "process failed"])
    assert judged(failing) == []


def test_a_failure_is_told_at_one_place() -> None:
    logs = sound()
    for before in (1, 6):
        moved = {**logs, B: [line for line in logs[B] if line[0] != "failed"]}
        moved[B].insert(before, ["failed", DEAD, STAMP, 3_000])
        assert any(one.startswith("I13") for one in judged(moved)), before


def test_who_joins_later_need_not_be_told_and_half_a_line_counts_for_nothing() -> None:
    logs = sound()
    logs[4] = [["joined", 4, KILLED + 1], ["end"]]
    assert judged(logs) == []


def test_recovery_is_what_was_sent_after_the_kill_and_came_after_the_failure() -> None:
    trace = Trace("w1")
    for line in (["joined", A, 1], got(R, 40, B, [A]), ["failed", DEAD, STAMP, 3_000]):
        trace.take(json.dumps(line))
    assert trace.recovered_at(KILLED) == 2_000
    assert trace.recovered_at(KILLED, [DEAD]) == 0
    trace.take(json.dumps(["got", BE, 90, B, 8, 2_500, [A], 3_400]))
    trace.take(json.dumps(["got", R, 90, B, 9, 900, [A], 3_400]))  # sent before the kill
    trace.take(json.dumps(["got", R, 95, B, 9, 2_500, [A], 3_500]))
    assert trace.recovered_at(KILLED, [DEAD]) == 3_500


def kills(kinds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Long intervals: processes of a test share two cores, and must not be taken for dead."""
    words = ["--times", "1", "--kinds", kinds, "--interval-ms", "100", "--json"]
    code = main(["chaos", "toc", *words])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.chaos.toc/1"
    assert found["violations"] == 0, found["examples"]
    assert code == (1 if found["false_removals"] else 0)
    assert [one["kind"] for one in found["each"]] == kinds.split(",")
    for one in found["each"]:
        assert (one["detection_ms"] > 0) == (one["kind"] != "stall")
        assert one["detection_ms"] <= one["recovery_ms"] > 0
        assert bool(one["failed"]) == (one["kind"] not in {"leader", "stall", "core"})
        # Two processes of each rack hear both of the other one.
        assert one["passed"] >= 8 if one["kind"] == "core" else not one["passed"]
        if one["kind"] == "core":
            assert one["detection_t"] >= SILENT_INTERVALS  # a switch was silent before
            assert one["recovery_ms"] > one["detection_ms"]
    assert sum(found["handled"].values()) == kinds.split(",").count("handling")
    stalls = (one["recovery_t"] for one in found["each"] if one["kind"] == "stall")
    assert all(one >= STOPS["stall"] for one in stalls)  # the barrier waits for the stopped one
    assert found["messages"] > 50


def test_a_killed_process_and_a_cut_cable_break_no_promise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kills("process,cable", capsys)


def test_all_go_on_by_another_spine_when_a_cable_to_the_core_is_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kills("core", capsys)


def test_all_that_passes_between_racks_crosses_the_core_that_is_cut_off_a_spine() -> None:
    topology = Topology.tree(RACKS, SPINES, 1)
    core = switch_id("core-0")
    for rack, other in ((0, 1), (1, 0)):
        spines = topology.switch_of_rack(rack).upper
        assert len(spines) == 2
        for spine in spines:
            hops = topology.switches[spine].next_hops
            assert hops(process_id(other, 1), topology.routes(spine), True) == [core]
        dead = frozenset({Link(spines[0], core)})
        assert {*topology.reached(dead).values()} == {topology.racks}
        assert topology.routes(spines[0], dead)[core] == frozenset()


class Told(Crew):
    """Notes what switches are told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Shape())
        self.lines: list[tuple[str, str]] = []

    def tell(self, name: str, line: str = "") -> None:
        self.lines.append((name, line))


def test_a_cable_is_cut_at_the_ends_that_lose_and_dead_once_an_end_is_told(tmp_path: Path) -> None:
    spine, core, other = (switch_id(one) for one in ("spine-1", "core-0", "spine-0"))
    made = Told(tmp_path)
    status = {"switches": [{"switch": spine, "host": "a", "port": 1},
                           {"switch": core, "host": "b", "port": 2}]}  # fmt: skip
    ends = ("spine-1", "core-0")
    for ways, victim, told in (
        (ends, "spine-1 and core-0", [("spine-1", "cut b:2"), ("core-0", "cut a:1")]),
        (ends[:1], "spine-1 to core-0", [("spine-1", "cut b:2")]),
        (ends[1:], "core-0 to spine-1", [("core-0", "cut a:1")]),
    ):
        cable = Cable(made, ends, ways, status)
        assert cable.victim == victim
        cable.cut()
        assert made.lines == told
        made.lines.clear()
        cable.heal()
        assert made.lines == [(end, "heal") for end in ways]
        made.lines.clear()

    def said(lines_of_spine: str, lines_of_core: str) -> tuple[int, bool]:
        (tmp_path / "spine-1.out").write_text(lines_of_spine)
        (tmp_path / "core-0.out").write_text(lines_of_core)
        return cable.dead_at(10), cable.is_whole

    assert said("", "") == (0, True)
    assert said(f"[9, [{core}]]\n[11, []]\n", f"[12, [{other}]]\n") == (0, True)
    assert said(f"[10, [{core}]]\n[15, [{core}]]\n", f"[12, [{spine}]]\n") == (10, False)
    assert said("[10, []]\n", f"[12, [{spine}, {other}]]\n") == (12, False)
    assert said(f"[10, [{core}]]\n[13, []]\n", f"[12, [{spine}]]\n[14, []]\n") == (10, True)
    assert said(f"[10, [{core}]]\n[13, []]\n", f"[12, [{spine}]]\n[14, []") == (10, False)


def test_messages_between_racks_are_those_of_another_one_that_were_called_since() -> None:
    here, beside, there = process_id(0, 1), process_id(0, 2), process_id(1, 1)
    trace = Trace("w0")
    for line in (
        ["joined", here, 1],
        ["got", R, 10, there, 1, 90, [here], 210],  # called before
        ["got", R, 11, there, 2, 150, [here], 220],
        ["got", R, 12, beside, 1, 150, [here], 230],
        ["got", BE, 13, there, 3, 160, [here], 240],
        ["got", R, 14, there, 4, 170, [here], 250],
    ):
        trace.take(json.dumps(line))
    assert between_racks([trace], 100) == 2
    assert trace.heard_at(100) == {there: 220, beside: 230}
    assert trace.heard_at(100, 230) == {there: 250, beside: 230}
    assert trace.heard_at(160) == {there: 250}


def test_all_have_heard_each_other_when_the_last_one_has() -> None:
    first, second = Trace("w0"), Trace("w1")
    for trace, process, at in ((first, A, 300), (second, B, 200)):
        trace.take(json.dumps(["joined", process, 1]))
        trace.take(json.dumps(["got", R, 10, A, 1, 150, [A, B], at]))
    assert all_heard_at([first, second], 100) == 0  # nobody has heard B
    for trace, at in ((first, 310), (second, 400)):
        trace.take(json.dumps(["got", R, 20, B, 1, 160, [A, B], at]))
    assert all_heard_at([first, second], 100) == 400
    assert all_heard_at([first, second], 100, 200) == 400
    assert all_heard_at([first, second], 100, 201) == 0
    assert all_heard_at([first, second], 155) == 0


def ended(folder: Path, **logs: list[Line]) -> Chaos:
    """Return a network whose processes have written this down."""
    folder.mkdir()
    for name, lines in logs.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.1.1.log").write_text(text)
    chaos = Chaos(Told(folder), Settings())
    chaos.logs.read()
    return chaos


def test_who_is_excluded_without_a_fault_is_a_false_removal(tmp_path: Path) -> None:
    chaos = ended(
        tmp_path / "a",
        w0=[["joined", A, 1], ["failed", B, 50, 60], ["failed", DEAD, 51, 61]],
        w1=[["joined", B, 1]],
        w2=[["joined", DEAD, 1]],
        w3=[["joined", 4, 1], ["excluded", 80, "silent"]],
    )
    chaos.deaths[DEAD] = 55
    assert chaos.false_removals == {B, 4}
    chaos.deaths |= {B: 55, 4: 55}
    assert not chaos.false_removals
    assert chaos.judge() == []
    chaos.stopped.add(DEAD)
    assert any(one.startswith("I13") for one in chaos.judge())  # it was not excluded


def test_what_came_of_all_networks_counts(tmp_path: Path) -> None:
    excluded: Line = ["excluded", 80, "silent"]
    never_sent = got(BE, 30, B, [A])
    made = [
        ended(tmp_path / "a", w0=[["joined", A, 1], never_sent, excluded]),
        ended(tmp_path / "b", w0=[["joined", A, 1], never_sent, excluded]),
    ]
    for chaos in made:
        chaos.handled["unsettled"] = 2
    rounds = [
        Round(1, "process", "w1", 1, 10.0, 20.0, 0.5, 1.0, 0),
        Round(2, "core", "spine-0 to core-0", 0, 30.0, 40.0, 1.5, 2.0, 9),
        Round(3, "core", "spine-1 to core-0", 0, 50.0, 60.0, 2.5, 3.0, 8),
    ]
    result = result_of(Settings(kinds=("process", "core")), made, rounds, 5.0)
    assert (result.rounds, result.messages, result.violations) == (3, 2, 2)
    assert (result.false_removals, result.handled["unsettled"]) == (2, 4)
    assert not result.clean
    assert [one.rounds for one in result.kinds.values()] == [1, 2]
    assert (result.kinds["core"].passed_min, result.kinds["process"].passed_min) == (8, 0)


@pytest.mark.slow
def test_faults_of_each_kind_break_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    kills("process,aggregator,leader,cable,core", capsys)


@one_in(3)
def test_stops_and_a_leader_that_dies_in_a_failure_break_no_promise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kills("handling,stall,stop", capsys)


def test_what_a_stopped_process_holds_is_noted_behind_its_exclusion() -> None:
    """Its streams end only once it has what others deliver of that."""

    class Stopped:
        process = 7
        names: ClassVar[dict[str, int]] = {"a": 7}

        async def send(self, parts: object) -> int:
            raise Fenced("silent")

        send_reliable = send

        @property
        async def best_effort(self) -> AsyncIterator[Message]:
            raise Fenced("settled")
            yield

        @property
        async def reliable(self) -> AsyncIterator[Message]:
            for number in (1, 2):
                await asyncio.sleep(0.01)
                yield Message(number, 8, json.dumps([number, 5, [7]]).encode())
            raise Fenced("settled")

    async def body() -> None:
        worker = Worker(cast(Member, Stopped()), Orders("", "a", 0, "", 1, 0.001), log)
        with pytest.raises(ExceptionGroup) as caught:
            await worker.run(asyncio.Event())
        (why,) = caught.value.exceptions
        assert isinstance(why, Fenced)
        assert str(why) == "settled"

    log = io.StringIO()
    asyncio.run(asyncio.wait_for(body(), 10))
    words = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [one[2] for one in words if one[0] == "got"] == [1, 2]


def test_kills_that_are_not_possible_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--kinds", "x"], ["--workers", "1"], ["--interval-ms", "0"]):
        assert main(["chaos", "toc", *words]) == 2
        assert "chaos toc" in capsys.readouterr().err
