"""`weir relay`: what it says when it serves, and what it does not do without being told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.interpreter import environment, python
from weir.testing.memory_node import node


def test_a_relay_says_where_it_serves_and_the_doctor_looks_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node() as core:
        command = python(
            "weir.cli", "relay", core.url, "--data", str(tmp_path / "r"), "--port", "0", "--json",
            "--metrics", "127.0.0.1:0", "--node", "9", "--topics", "a,shop/b", "--until-eof",
        )  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            told = json.loads(text)
            assert told["schema"] == "weir.relay/1"
            assert told["settings"]["topics"] == ["default/a", "shop/b"]
            assert (told["node"], told["brokerset"]) == (9, 0)
            assert told["url"].startswith("weir://127.0.0.1:")
            place = told["metrics"].removeprefix("http://")
            assert main(["doctor", "--relay", place, "--json"]) == 0
            findings = json.loads(capsys.readouterr().out)["findings"]
            assert {one["check"] for one in findings} == {
                "relay-core", "relay-access", "relay-lag", "relay-disk", "relay-gaps",
                "relay-lineages",
                "relay-acks",
            }  # fmt: skip
            process.stdin.close()
            assert process.wait(30) == 0
    assert main(["doctor", "--relay", place]) == 1
    assert "does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "can be reached by others"),
        (["--metrics", "0.0.0.0:6801"], "can be reached by others"),
        (["--metrics", "6801"], "write HOST:PORT"),
        (["--set", "70000"], "a set is 0 to"),
        (["--upper", "http://x"], "--upper"),
        (["--tls-key", "x.pem"], "--tls-certificate, --tls-key and --tls-trust together"),
        (
            ["--tls-certificate", "c", "--tls-key", "k", "--tls-trust", "t", "--host", "0.0.0.0"],
            "can be reached by others",
        ),
    ],
)
def test_wrong_usage_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    command = ["relay", "weir://127.0.0.1:1", "--data", str(tmp_path / "r"), *options]
    assert main(command) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_user_without_a_password_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WEIR_PASSWORD", "WEIR_PASSWORD_FILE", "WEIR_TOKEN", "WEIR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for core, words in (("ann@127.0.0.1:1", "needs a password"), ("a:b@x", "has no password")):
        assert main(["relay", f"weir://{core}", "--data", str(tmp_path / "r")]) == 2
        assert words in capsys.readouterr().err
