"""The files for systemd and containers name what there is, and start what our command parses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

from weir.cli.main import whole_command

ROOT = Path(__file__).parents[5]
UNIT = ROOT / "deploy/weir.service"
CONTAINER = ROOT / "deploy/Containerfile"


def parses(words: list[str]) -> None:
    """Check a command line against the options of our commands, without running it."""
    assert words[0].endswith("weir")
    command = whole_command()
    context = command.make_context("weir", words[1:2], resilient_parsing=True)
    verb = command.get_command(context, words[1])  # type: ignore[attr-defined]
    assert verb is not None, words
    with verb.make_context(words[1], words[2:], parent=context):
        pass


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)
    ]


def test_the_unit_starts_what_we_parse_and_keeps_its_bounds() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    parses(shlex.split(settings["ExecStart"]))
    assert settings["Type"] == "notify"
    assert settings["KillMode"] == "mixed", "the shards would end before they are drained"
    assert int(settings["LimitNOFILE"]) >= 65_536
    assert settings["NoNewPrivileges"] == settings["ProtectHome"] == "yes"


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    """As it is, but for the program's path, which must exist where it is checked."""
    text = UNIT.read_text()
    assert re.findall(r"^\[(\w+)\]$", text, re.MULTILINE) == ["Unit", "Service", "Install"]
    if analyze := shutil.which("systemd-analyze"):
        unit = tmp_path / UNIT.name
        unit.write_text(text.replace("/opt/weir/bin/weir", shutil.which("true") or ""))
        done = subprocess.run(
            [analyze, "verify", "--man=no", unit], capture_output=True, timeout=60
        )
        lines = done.stderr.decode().splitlines()
        assert not [line for line in lines if UNIT.name in line]


def test_what_the_container_copies_is_there() -> None:
    copied = [rest for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    assert copied
    for rest in copied:
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_container_runs_as_nobody_special_and_starts_a_node() -> None:
    done = dict(instructions())  # of each kind the last one, which is that of the last stage
    words = [word for word, _ in instructions()]
    assert done["USER"] not in ("root", "0")
    assert words.index("USER") < words.index("CMD"), "the node would run as root"
    assert words.count("FROM") == 2
    assert done["STOPSIGNAL"] == "SIGTERM"
    entry, command = json.loads(done["ENTRYPOINT"]), json.loads(done["CMD"])
    parses(entry + command)
    parses(json.loads(done["HEALTHCHECK"].partition("CMD ")[2]))


def test_what_runs_nodes_has_all_that_nodes_can_use() -> None:
    """A node without `compress` refuses every packed batch: it looks into what it stores."""
    project = tomllib.loads((ROOT / "packages/weir-mq/pyproject.toml").read_text())["project"]
    for text in (UNIT.read_text(), CONTAINER.read_text()):
        for extras in re.findall(r"weir-mq\[([\w,]+)\]", text):
            assert {"fast", "compress"} <= set(extras.split(","))
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert "weir-mq[" in UNIT.read_text()
    assert "'./packages/weir-mq[" in CONTAINER.read_text()
