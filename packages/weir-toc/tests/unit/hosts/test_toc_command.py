"""The command `weir-toc`: its words, defaults and exit codes."""

from __future__ import annotations

import json
import os
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


def test_the_status_names_switches_and_whom_failures_wait_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = process_id(0, 1), process_id(0, 2)
    leader: Frame = {
        "role": "leader", "member": 1, "term": 1, "problem": "", "lagging": [],
        "network": {"racks": 1, "spines": 1, "cores": 0, "interval_ns": 10**6, "place": "host",
                    "drain_mbit": 0, "mark_bytes": 0},
        "switches": [{"switch": switch_id("spine-0"), **SWITCH}],
        "processes": [{"process": one, "name": name, "connected": True}
                      for one, name in ((a, "a"), (b, ""))],
        "unsettled": [{"failure": 3, "waiting": [a, b]}, {"failure": 4, "waiting": []}],
    }  # fmt: skip

    async def ask_once(*_: object) -> Frame:
        return leader

    monkeypatch.setattr(cli, "ask_once", ask_once)
    assert main(["status", NOBODY]) == 0
    said = capsys.readouterr().out
    assert "aggregator spine-0  127.0.0.1:7100\n" in said
    assert f"failure 3 waits for a, process {b}\nfailure 4 waits for a cable\n" in said
