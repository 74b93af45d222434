"""The run of the lag alarm: what makes links lag, what is made of alarms, and a short run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir_lab.bench.toc.limits import alarm_worker
from weir_lab.bench.toc.limits.alarm import (
    AlarmRound,
    Alarms,
    AlarmSettings,
    is_right,
    judged,
    stopped,
)
from weir_lab.bench.toc.limits.alarm_worker import LAG_INTERVALS, LaggingSocket, SlowClock, obey
from weir_toc.hosts.udp import UdpSocket

T = 20_000_000
LINK, ABOVE = ["p0", "rack-0"], ["rack-0", "spine-0"]


def found(
    link: list[str], hop: list[str], cause: str = "queue", over: bool = False
) -> dict[str, Any]:
    return {"event": "lagging", "link": link, "hop": hop, "cause": cause, "behind_ms": 140.0,
            "since_ns": 1, "over": over}  # fmt: skip


class Sent:
    """The packets that left a socket, and when, in a time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100 * T
        self.packets: list[tuple[int, bytes]] = []
        monkeypatch.setattr(alarm_worker, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(UdpSocket, "send", lambda _, packets: self.take(packets))

    def take(self, packets: Any) -> None:
        self.packets += [(self.now, bytes(data)) for data, _, _ in packets]


def test_a_clock_falls_behind_slowly_and_is_right_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(monkeypatch)
    clock = SlowClock(7 * T)
    assert clock() == sent.now
    clock.fall_behind(True)
    for passed, behind in ((0, 0), (T, T // 2), (6 * T, 3 * T), (14 * T, 7 * T), (90 * T, 7 * T)):
        sent.now = 100 * T + passed
        assert sent.now - clock() == behind
    clock.fall_behind(False)
    assert clock() == sent.now


def test_packets_wait_and_leave_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)

    async def run() -> None:
        socket = LaggingSocket(("127.0.0.1", 0), None, T)
        near, far = ("127.0.0.1", 1), ("127.0.0.1", 2)
        obey([f"queue {near[0]}:{near[1]}\n"], lambda: socket, None)
        socket.send([(b"1", near, 1), (b"2", far, 1)])
        assert sent.packets == [(sent.now, b"2")]
        sent.now += LAG_INTERVALS * T
        socket.send([(b"3", near, 1)])
        assert sent.packets[1:] == [(sent.now, b"1")]
        obey(["well\n"], lambda: socket, None)
        socket.send([(b"4", near, 1)])
        assert [one for _, one in sent.packets[2:]] == [b"3", b"4"]
        socket.close()

    asyncio.run(run())


def test_most_packets_are_lost_and_one_in_eight_intervals_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(monkeypatch)
    socket = LaggingSocket(("127.0.0.1", 0), None, T)
    obey(["loss \n"], lambda: socket, None)
    for _ in range(41):
        socket.send([(b"x", ("127.0.0.1", 1), 1)])
        sent.now += T
    passed = [at for at, _ in sent.packets]
    assert len(passed) == 6
    assert {later - one for one, later in pairwise(passed)} == {8 * T}
    assert socket.counters.lost == 35
    socket.close()


def test_lines_say_what_a_process_suffers() -> None:
    clock = SlowClock(7 * T)
    obey(["queue\n", "clock\n"], lambda: None, clock)
    assert clock() < time.monotonic_ns()
    told: list[tuple[str, str]] = []

    class Socket:
        def lag(self, what: str, to: str) -> None:
            told.append((what, to))

    opened: Callable[[], Any] = Socket
    obey(["loss host:1\n", "clock\n", "well\n"], opened, clock)
    assert told == [("loss", "host:1"), ("well", ""), ("well", "")]


def test_a_process_is_stopped_again_and_again_and_runs_at_the_end() -> None:
    program = "import time\nwhile True: print(time.monotonic_ns(), flush=True); time.sleep(0.005)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with stopped(process.pid, 0.02):
            time.sleep(0.5)
        time.sleep(0.1)
        process.terminate()
        times = [int(one) for one in process.stdout.read().split()]
        gaps = [later - one for one, later in pairwise(times)]
        assert sum(one > LAG_INTERVALS * T * 0.9 for one in gaps) >= 2


def test_lines_of_the_controller_are_read_as_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first, second = (json.dumps(found(LINK, LINK, over=over)) for over in (False, True))
    path.write_text('{"event": "controller"}\n' + first + "\n" + second[:9])
    alarms = Alarms(path)
    for _ in range(2):
        alarms.read()
        assert [one["link"] for one in alarms.begun] == [LINK]
        assert alarms.lagging == {(*LINK,)}
    with path.open("a") as output:
        output.write(second[9:] + "\n")
    alarms.read()
    assert len(alarms.begun) == 1
    assert not alarms.lagging


def test_an_alarm_is_right_if_link_hop_and_cause_are() -> None:
    assert is_right(found(LINK, LINK), "queue", LINK)
    assert is_right(found(ABOVE, LINK), "queue", LINK)
    assert not is_right(found(ABOVE, ABOVE), "queue", LINK)
    assert not is_right(found(LINK, LINK), "loss", LINK)
    assert not is_right(found(["p2", "rack-0"], LINK), "queue", LINK)
    assert is_right(found(ABOVE, ABOVE), "queue", ABOVE)
    assert not is_right(found(ABOVE, LINK), "queue", ABOVE)


def test_what_was_not_named_or_named_for_nothing_is_no_success() -> None:
    settings = AlarmSettings()
    good = AlarmRound("queue", LINK, 31.0, 0, ["x"])
    late = AlarmRound("loss", LINK, 47.0, 0, ["x"])
    result = judged(settings, [good, late], [], 0, 3, 0, 9.0)
    assert (result.named_t_max, result.named_t_median, result.removed) == (47.0, 39.0, 3)
    assert result.causes["loss"] == 47.0
    assert result.clean
    assert not result.examples
    unnamed = judged(settings, [good, AlarmRound("clock", LINK, None, 0, [])], [], 0, 0, 0, 9.0)
    assert (unnamed.unnamed, unnamed.clean) == (1, False)
    assert unnamed.examples == ["p0 to rack-0, clock: nothing was told"]
    wrong = judged(settings, [AlarmRound("clock", LINK, 31.0, 2, ["y"])], [], 0, 0, 0, 9.0)
    assert (wrong.wrong, wrong.clean) == (2, False)
    false = judged(settings, [good], [found(LINK, LINK)], 0, 0, 0, 9.0)
    assert (false.false_alarms, false.clean) == (1, False)
    assert "all was well, and p0 to rack-0 lags by 140.0 ms" in false.examples[0]
    assert not judged(settings, [good], [], 1, 0, 0, 9.0).clean


def test_each_cause_has_a_round_at_a_process_and_but_for_clocks_at_a_switch() -> None:
    plan = [*AlarmSettings(rounds=2).plan(("p0", "p1", "p2"))]
    assert plan[:7] == [
        ("clock", LINK), ("stopped process", LINK), ("queue", LINK), ("loss", LINK),
        ("stopped process", ABOVE), ("queue", ABOVE), ("loss", ABOVE),
    ]  # fmt: skip
    assert [link for cause, link in plan[7:] if cause == "loss"] == [
        ["p1", "rack-1"], ["rack-1", "spine-0"],
    ]  # fmt: skip


def test_links_of_real_processes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """At long intervals: a machine that is busy with other tests makes processes pause, too."""
    words = "--rounds 1 --quiet-seconds 0.5 --processes 4 --interval-ms 50 --causes queue --json"
    code = main(["bench", "toc", "alarm", *words.split()])
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "weir.bench.toc.limits.alarm/1"
    assert [(one["cause"], one["link"]) for one in result["each"]] == [
        ("queue", LINK), ("queue", ABOVE),
    ]  # fmt: skip
    assert result["uncounted"] == 0
    if not result["removed"]:
        assert result["unnamed"] == 0, result["examples"]
        assert 20 < result["named_t_max"] < 150
    assert code == (0 if not (result["unnamed"] + result["wrong"] + result["false_alarms"]) else 1)


def test_settings_that_say_nothing_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--rounds", "-1"], ["--processes", "3"], ["--interval-ms", "0.5"],
                  ["--quiet-seconds", "-1"], ["--causes", "love"]):  # fmt: skip
        assert main(["bench", "toc", "alarm", *words]) == 2
        assert "Traceback" not in capsys.readouterr().err
