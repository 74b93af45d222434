"""The command `weir-toc`: its words, defaults and exit codes."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weir_toc
from rigs.programs import PATIENCE_SECONDS, free_ports
from weir_toc import cli
from weir_toc.cli import FAILED, WRONG_USE, main
from weir_toc.controller.entries import InputSilent
from weir_toc.controller.lag import Cause
from weir_toc.controller.promises import Reason
from weir_toc.controller.records import Founded, Reported, SwitchStarted
from weir_toc.controller.state import ControllerState
from weir_toc.hosts.condition import status_of
from weir_toc.hosts.frames import Frame
from weir_toc.topology import process_id, switch_id

NOBODY = "toc://127.0.0.1:1"
SWITCH = {"host": "127.0.0.1", "port": 7100, "connected": True}


def started(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    source = str(Path(weir_toc.__file__).parents[1])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "weir_toc", *words], stdout=stdout, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": ""},
    )  # fmt: skip


def test_an_aggregator_that_waits_says_once_for_whom() -> None:
    (port,) = free_ports(1)
    url = f"toc://127.0.0.1:{port}"
    with started("aggregator", url, "--json") as one:
        assert one.stdout is not None
        try:
            assert select.select([one.stdout], [], [], PATIENCE_SECONDS)[0]
            told = json.loads(one.stdout.readline())
        finally:
            one.terminate()
        rest, _ = one.communicate(timeout=PATIENCE_SECONDS)
    assert (told["event"], told["controller"]) == ("waiting", url)
    assert str(port) in told["why"]
    assert rest == b""


def test_a_reader_that_has_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started("status", NOBODY, "--json", stdout=writer) as one:
        os.close(writer)
        _, said = one.communicate(timeout=PATIENCE_SECONDS)
    assert (said, one.returncode) == (b"", FAILED)


@pytest.mark.parametrize("words", [
    ["status", "nonsense"],
    ["status", NOBODY, "--json", "--metrics"],
    ["status", "toc://127.0.0.1:1,127.0.0.1:1"],
    ["aggregator", NOBODY, "--switch", "nonsense"],
    ["aggregator", NOBODY, "--listen", "nonsense"],
    ["aggregator", NOBODY, "--place", "xdp"],
    ["controller", "--id", "2", "--members", NOBODY, "--folder", "log"],
    ["controller", "--id", "1", "--members", NOBODY, "--folder", "log", "--racks", "0"],
    ["controller", "--id", "1", "--members", NOBODY, "--folder", "log", "--interval-ms", "0"],
    ["controller", "--id", "1"],
])  # fmt: skip
def test_wrong_use_has_an_exit_code_of_its_own(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code: Any = main(words)
    except SystemExit as error:  # argparse does not understand it
        code = error.code
    assert code == WRONG_USE
    assert capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words", [["controller", "--id", "1", "--members", NOBODY], ["net", "up", "--hosts", "2"]]
)
def test_a_folder_with_files_of_others_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fstab").touch()
    assert main([*words, "--folder", str(tmp_path)]) == FAILED
    assert "holds other files (fstab) and no log of a controller" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["fstab"]


@pytest.mark.parametrize(("verb", "defaults"), [
    (["controller"], ["1 by default", "0 by default", "between beacons, 1 by default"]),
    (["aggregator"], ["rack-0 by default", "127.0.0.1:0 by default"]),
    (["net", "up"], [f"{count} by default" for count in (8, 4, 2, 1, 3, 5, 0)]),
])  # fmt: skip
def test_help_tells_defaults(
    verb: list[str], defaults: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*verb, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert [one for one in defaults if one not in said] == []


LEADER: Frame = {
    "role": "leader", "member": 2, "term": 3, "problem": "", "majority": True, "network": None,
    "leader_at": ["node-2", 2],
}  # fmt: skip
FOLLOWER = {**LEADER, "role": "follower", "member": 1}


@pytest.mark.parametrize(
    ("url", "answers", "code", "words"),
    [
        # The leader that a member names is asked, too.
        ("toc://node-1:1", {"node-1": FOLLOWER, "node-2": LEADER}, 0, "node-2:2  member 2  leader"),
        ("toc://node-1:1", {"node-1": FOLLOWER}, 0, "the leader at node-2:2 was not reached"),
        # Here that would be another network.
        ("toc://node-1:1", {"node-1": {**FOLLOWER, "leader_at": ["localhost", 2]},
                            "localhost": {**LEADER, "member": 9}},
         0, "localhost:2 was not reached"),
        # A leader that was given, and does not answer, is lost: the other one does not know yet.
        ("toc://node-1:1,node-2:2", {"node-1": FOLLOWER}, 3, "no majority"),
        ("toc://node-1:1", {"node-1": {**FOLLOWER, "majority": False, "leader_at": None}},
         3, "no majority"),
        # The higher term is right.
        ("toc://node-1:1,node-3:3", {"node-1": {**FOLLOWER, "term": 2, "leader_at": ["node-4", 4]},
                                     "node-3": FOLLOWER, "node-2": LEADER},
         0, "node-2:2  member 2  leader"),
    ],
)  # fmt: skip
def test_the_status_asks_the_leader_that_a_member_names(
    url: str, answers: dict[str, Frame], code: int, words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async def ask_once(address: tuple[str, int], _: Frame) -> Frame:
        if address[0] not in answers:
            raise ConnectionRefusedError
        return answers[address[0]]

    monkeypatch.setattr(cli, "ask_once", ask_once)
    assert main(["status", url]) == code
    said = capsys.readouterr().out
    assert words in said
    assert ("member 9" in said) == ("member 9" in words)
    assert main(["status", url, "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["majority"] == (code == 0)


A, B = process_id(0, 1), process_id(0, 2)
#: Of a network in which something of each kind is wrong.
TROUBLED: Frame = {
    "role": "leader", "member": 1, "term": 4, "problem": "",
    "network": {"racks": 1, "spines": 1, "cores": 0, "interval_ns": 10**6, "place": "host",
                "drain_mbit": 0, "mark_bytes": 0},
    "switches": [{"switch": switch_id("spine-0"), **SWITCH, "kernel_drops": 7}],
    "processes": [{"process": A, "name": 'a "\\', "connected": True, "kernel_drops": 0},
                  {"process": B, "name": "", "connected": False, "kernel_drops": 2}],
    "failed": 5, "undecided": True, "to_remove": 6,
    "unsettled": [{"failure": 3, "waiting": [A, B]}, {"failure": 4, "waiting": []}],
    "dead_links": [["rack-0", "spine-0"]],
    "lagging": [{"link": ["b", "rack-0"], "hop": ["c", "d"], "cause": "clock", "behind_ms": 8.25}],
    "lagged": 9,
    "held": [{"process": "a", "waits_for": None, "cause": "sender", "behind_ms": 712.5}],
    "holds": 10, "forwarding": [["a", "b"], ["b", "a"]], "forwarded": 123456789,
}  # fmt: skip


def test_the_status_tells_dead_links() -> None:
    state = ControllerState()
    rack, spine = switch_id("rack-1"), switch_id("spine-0")
    state.apply(Founded(2, 1, 0, 10**6))
    for one in (switch_id("rack-0"), rack, spine):
        state.apply(SwitchStarted(one, 1, "h", 9))
    assert status_of(state, {}, None)["dead_links"] == []
    state.apply(Reported(spine, 1, 1, InputSilent(spine, rack, 1, 70)))
    assert status_of(state, {}, None)["dead_links"] == [["rack-1", "spine-0"]]


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader of that network, and a member that does not answer."""

    async def ask_once(address: tuple[str, int], *_: object) -> Frame:
        if address[1] == 2:
            raise ConnectionRefusedError("refused")
        return TROUBLED

    monkeypatch.setattr(cli, "ask_once", ask_once)


@pytest.mark.usefixtures("troubled")
def test_the_status_names_all_that_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", NOBODY]) == 0
    said = capsys.readouterr().out
    assert "aggregator spine-0  127.0.0.1:7100  kernel dropped 7" in said
    assert said.endswith(
        "dead rack-0 to spine-0\n"
        "lagging b to rack-0  by 8.25 ms  from c to d on  cause clock\n"
        "held by a  by 712.5 ms  waits for nobody  cause sender\n"
        "forwarding from a to b: their packets are lost on the way\n"
        "forwarding from b to a: their packets are lost on the way\n"
        f'failure 3 waits for a "\\, process {B}\nfailure 4 waits for a cable\n'
    )


@pytest.mark.usefixtures("troubled")
def test_the_status_as_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", f"{NOBODY},127.0.0.1:2", "--metrics"]) == 0
    said = capsys.readouterr().out
    heads = re.findall(
        r"# HELP (weir_toc_\w+) [A-Z0-9].*\.\n# TYPE (\S+) (gauge|counter)\n((?:[^#].*\n)*)", said
    )
    assert "".join(samples for *_, samples in heads) == "".join(
        line for line in said.splitlines(keepends=True) if line[0] != "#"
    )
    for name, typed, kind, samples in heads:
        assert typed == name
        assert (kind == "counter") == name.endswith("_total")
        assert all(re.split("[ {]", one)[0] == name for one in samples.splitlines())
    values = {pair.rsplit(" ", 1)[0].removeprefix("weir_toc_"): float(pair.rsplit(" ", 1)[1])
              for *_, samples in heads for pair in samples.splitlines()}  # fmt: skip
    spine, a, b = (f'{{node="{name}",id="{id}"}}' for name, id in (
        ("spine-0", switch_id("spine-0")), (r'a \"\\', A), ("", B)))  # fmt: skip
    reasons = {f'holding_processes{{cause="{one.value}"}}': 0.0 for one in Reason}
    causes = {f'lagging_links{{cause="{one.value}"}}': 0.0 for one in Cause}
    assert values == {
        "majority": 1, 'member_up{address="127.0.0.1:1"}': 1,
        'member_up{address="127.0.0.1:2"}': 0, 'member_leads{address="127.0.0.1:1"}': 1,
        'member_term{address="127.0.0.1:1"}': 4, "processes": 2, "processes_failed_total": 5,
        f"connected{spine}": 1, f"connected{a}": 1, f"connected{b}": 0,
        f"kernel_drops_total{spine}": 7, f"kernel_drops_total{a}": 0, f"kernel_drops_total{b}": 2,
        "dead_links": 1, **causes, 'lagging_links{cause="clock"}': 1,
        'link_behind_seconds{source="b",to="rack-0",hop_source="c",hop_to="d",cause="clock"}':
            0.00825,
        "lags_total": 9, **reasons, 'holding_processes{cause="sender"}': 1,
        'held_seconds{process="a",waits_for="",cause="sender"}': 0.7125, "holds_total": 10,
        "forwarding_pairs": 2, "forwarded_total": 123456789, "failures_unsettled": 3,
        "registers_to_remove": 6,
    }  # fmt: skip


def test_of_two_leaders_the_later_one_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask_once(address: tuple[str, int], *_: object) -> Frame:
        return {**TROUBLED, "term": address[1], "lagged": address[1]}

    monkeypatch.setattr(cli, "ask_once", ask_once)
    assert main(["status", f"{NOBODY},127.0.0.1:3,127.0.0.1:2", "--metrics"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^weir_toc_lags_total (\d+)$", said, re.MULTILINE) == ["3"]


def test_labels_are_there_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask_once(*_: object) -> Frame:
        return {**TROUBLED, "lagging": 2 * TROUBLED["lagging"]}  # two nodes of one name

    monkeypatch.setattr(cli, "ask_once", ask_once)
    assert main(["status", NOBODY, "--metrics"]) == 0
    assert capsys.readouterr().out.count("weir_toc_link_behind_seconds{") == 1


def test_without_a_majority_metrics_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", NOBODY, "--metrics"]) == 3
    said = capsys.readouterr().out
    assert "weir_toc_majority 0\n" in said
    assert 'weir_toc_member_up{address="127.0.0.1:1"} 0\n' in said
    assert "weir_toc_processes" not in said
