"""Marks of a network that was founded with a drain rate: real processes, and what is refused."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from rigs.loopback import loopback
from rigs.programs import PATIENCE_SECONDS, programs
from weir_toc import sync
from weir_toc.cli import WRONG_USE, main
from weir_toc.congestion import mbit_of, rate_of
from weir_toc.controller.records import Founded
from weir_toc.controller.state import ControllerState
from weir_toc.endpoint.events import EndpointConfig

#: A window begins with four times the least, and grows as long as nothing is marked.
FIRST_WINDOW = 4 * EndpointConfig().window_min


def send(a: sync.Member, b: sync.Member) -> None:
    """Send a few windows, and only then let the program of `b` take what has come: the network
    does not carry that any more.
    """
    a.send_reliable_many([[(b.process, bytes(1_000))]] * 600)
    assert a.drain(PATIENCE_SECONDS)
    assert len([*islice(b.reliable, 600)]) == 600


def test_marks_arrive_and_the_window_shrinks(tmp_path: Path) -> None:
    marks = ("--drain-mbit", "1", "--mark-bytes", "2000")
    with programs(tmp_path) as crew:
        crew.ports, crew.url = crew.ports[:1], crew.url.partition(",")[0]
        crew.controller(1, "--interval-ms", "50", *marks)
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        with (
            sync.join(crew.url, name="a", timeout=PATIENCE_SECONDS) as a,
            sync.join(crew.url, name="b", timeout=PATIENCE_SECONDS) as b,
        ):
            a.wait_for("b")
            b.wait_for("a")
            send(a, b)
            said = a.describe()
    assert int(str(said["marked"])) > 400
    assert 0 < int(str(said["window_least"])) < FIRST_WINDOW


def test_without_a_rate_nothing_is_marked_and_the_window_grows(tmp_path: Path) -> None:
    with loopback(tmp_path) as network, sync.join(network.url, name="a") as a:
        send(a, a)
        said = a.describe()
    assert said["marked"] == 0
    assert int(str(said["window_least"])) > FIRST_WINDOW


def test_a_snapshot_keeps_the_rate_and_one_of_before_has_none() -> None:
    state = ControllerState()
    state.apply(Founded(1, 0, 0, 5, "xdp", 131, 9))
    assert ControllerState.load(state.dump()).network == Founded(1, 0, 0, 5, "xdp", 131, 9)
    former = json.loads(state.dump())
    former["network"] = former["network"][:5]
    assert ControllerState.load(json.dumps(former).encode()).network == Founded(1, 0, 0, 5, "xdp")


def test_a_rate_is_stated_in_bits_a_second() -> None:
    assert rate_of(1_000) == 131_072  # bytes in 1.048576 ms
    assert mbit_of(131_072) == 1_000
    assert rate_of(0.1) > 0


@pytest.mark.parametrize(("options", "why"), [
    (["--drain-mbit", "0.01"], "--drain-mbit: 0.1 to 1000000"),
    (["--drain-mbit", "nan"], "--drain-mbit: 0.1 to 1000000"),
    (["--drain-mbit", "9", "--place", "switch"], "pass no process that could mark"),
    (["--mark-bytes", "9"], "together with --drain-mbit"),
    (["--drain-mbit", "9", "--mark-bytes", "0"], "--mark-bytes: 1 to 1000000000"),
])  # fmt: skip
def test_marks_that_are_not_possible_are_refused(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = ["--id", "1", "--members", "toc://127.0.0.1:1", "--folder", str(tmp_path / "log")]
    for words in (["controller", *member], ["net", "up"]):
        assert main([*words, *options]) == WRONG_USE
        assert why in capsys.readouterr().err
    assert not (tmp_path / "log").exists()
