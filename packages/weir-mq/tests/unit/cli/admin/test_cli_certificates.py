"""`weir cert`: what it makes, what it prints, and what it says where it cannot."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weir.cli import output
from weir.cli.admin import certificates
from weir.cli.main import main
from weir.server.disk.node_folder import NodeFolder
from weir.server.network.certificate_files import ASKED, CertificateState, state_file


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return what runs `weir cert` in an empty folder: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def ran(*words: str) -> tuple[int, str, str]:
        code = main(["cert", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return ran


def as_json(ran: tuple[int, str, str]) -> dict[str, Any]:
    assert ran[0] == 0, ran[2]
    found: dict[str, Any] = json.loads(ran[1])
    return found


def test_a_set_gets_its_certificates(run: Callable[..., Any], tmp_path: Path) -> None:
    founded = NodeFolder(tmp_path / "data").found(2)
    made = as_json(run("init", "--data", "data", "--json"))
    assert made["system"] == f"{founded.system:x}"
    node = as_json(run("issue", "node", "1", "--host", "a", "--host", "10.0.0.1", "--json"))
    assert node["identity"] == f"weir://{founded.system:x}/0/node/1"
    assert node["hosts"] == ["a", "10.0.0.1"]
    assert as_json(run("issue", "user", "anna", "--json"))["identity"].endswith("/default/anna")
    assert as_json(run("issue", "device", "0xa17", "--json"))["identity"].endswith("/2583/0")
    assert "device/7/3 until" in run("issue", "device", "7/3")[1]
    renewed = as_json(run("renew", "node-1", "--days", "30", "--json"))
    assert renewed["serial"] != node["serial"]
    listed = as_json(run("list", "--json"))["certificates"]
    names = ["device-2583-0", "device-7-3", "node-1", "user-anna@default"]
    assert [one["name"] for one in listed] == names
    assert renewed["serial"] in run("list")[1]
    assert as_json(run("revoke", "user-anna@default", "--json"))["revoked"]
    assert "copy weir-ca/revoked.txt" in run("revoke", "device-7-3")[1]
    assert len((tmp_path / "weir-ca/revoked.txt").read_text().splitlines()) == 2


def test_the_ca_of_a_set_to_come_says_how_to_found_it(run: Callable[..., Any]) -> None:
    code, out, _ = run("init")
    assert code == 0
    system = out.split()[3]
    assert f"weir init --system {system}" in out
    assert run("list")[1].startswith("nothing is issued yet")


def test_a_ca_is_replaced_step_by_step(run: Callable[..., Any]) -> None:
    run("init", "--system", "abc")
    run("issue", "node", "1", "--host", "a")
    code, out, err = run("rotate-ca", "finish")
    assert (code, out, "rotate-ca prepare" in err) == (1, "", True), "nothing was replaced"
    assert "rotate-ca switch" in run("rotate-ca", "prepare")[1]
    assert as_json(run("rotate-ca", "switch", "--json"))["step"] == "switch"
    assert "renew them: node-1" in run("rotate-ca", "finish")[2]
    run("renew", "node-1")
    assert run("rotate-ca", "finish")[0] == 0
    assert run("rotate-ca", "finish")[0] == 0, "whoever was killed behind it takes it again"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["init", "--system", "xyz"], 2, "as `weir node status` shows it"),
        (["init", "--system", "abc", "--data", "data"], 2, "not both"),
        (["init", "--data", "data"], 1, "holds no node"),
        (["issue", "node", "1", "--host", "a"], 1, "weir cert init"),
        (["issue", "king", "1"], 2, "king"),
        (["rotate-ca", "again"], 2, "again"),
        (["reload", "--data", "data"], 1, "no node runs"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    run: Callable[..., Any], words: list[str], code: int, why: str
) -> None:
    found = run(*words)
    assert (found[0], why in found[2]) == (code, True), found


def test_wrong_names_are_told(run: Callable[..., Any]) -> None:
    run("init", "--system", "abc")
    assert "no identity of a node" in run("issue", "node", "x", "--host", "a")[2]
    assert "no hub" in run("issue", "device", "x")[2]
    assert "no identity of a user" in run("issue", "user", "a/b/c")[2]
    assert "no certificate has the name 'node-1'" in run("renew", "node-1")[2]


class Serving:
    """A node that answers `reload` as its shards do."""

    def __init__(self, data: Path, problem: str = "", answers: bool = True) -> None:
        self.data = data
        self.state = CertificateState("ab", "weir://abc/0/node/1", time.time() + 86_400, 0.0)
        self.problem = problem
        self.thread = threading.Thread(target=self._answer, daemon=True)
        data.mkdir(exist_ok=True)
        (data / "endpoint.json").write_text('{"host":"127.0.0.1","port":1,"pid":1}')
        state_file(data, 0).write_bytes(msgspec.json.encode(self.state))
        if answers:
            self.thread.start()

    def _answer(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if (self.data / ASKED).exists() and (asked := (self.data / ASKED).read_text()):
                state = msgspec.structs.replace(self.state, asked=asked, problem=self.problem)
                state_file(self.data, 0).write_bytes(msgspec.json.encode(state))
                return
            time.sleep(0.01)


@pytest.mark.parametrize("is_relay", [False, True])
def test_a_node_says_what_it_took(run: Callable[..., Any], tmp_path: Path, is_relay: bool) -> None:
    Serving(tmp_path / "data")
    if is_relay:
        (tmp_path / "data" / "endpoint.json").rename(tmp_path / "data" / "relay.json")
    code, out, _ = run("reload", "--data", "data")
    assert code == 0
    assert "shard 0 serves weir://abc/0/node/1, serial ab, until" in out


def test_a_relay_without_a_certificate_is_told_how_to_get_one(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "relay.json").write_text("{}")
    code, _, why = run("reload", "--data", "data")
    assert (code, "start it with --tls-certificate" in why) == (1, True)


def test_a_node_says_what_it_did_not_take(run: Callable[..., Any], tmp_path: Path) -> None:
    Serving(tmp_path / "data", problem="node.key is the key of another certificate")
    code, out, why = run("reload", "--data", "data", "--json")
    assert code == 1
    assert json.loads(out)["shards"][0]["problem"] in why


def test_a_node_that_does_not_answer_is_not_waited_for(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_RELOAD_SECONDS", 0.2)
    Serving(tmp_path / "data", answers=False)
    code, _, why = run("reload", "--data", "data")
    assert code == 1
    assert "did not answer within" in why
    assert "so far" not in why
    monkeypatch.setattr(output, "LINE_SECONDS", 0.1)
    assert "waiting for shards [0]: 0 s so far" in run("reload", "--data", "data")[2]
