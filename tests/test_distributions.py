"""The four distributions: one release, wheels that need what they declare, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("weir-raft", "weir-toc", "weir-mq", "weir-lab")
#: What runs outside the tree must find what it imports by its installation alone.
_HIDDEN = {"PYTHONPATH", "VIRTUAL_ENV"}
#: What a JVM that lives for seconds never earns back is left out.
_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def project(name: str) -> Mapping[str, object]:
    text = (ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
    found: Mapping[str, object] = tomllib.loads(text)["project"]
    return found


def version(name: str) -> str:
    file = {"weir-mq": "weir/version.py"}.get(name, f"{name.replace('-', '_')}/__init__.py")
    text = (ROOT / "packages" / name / "src" / file).read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return str(found)


def requirements(name: str) -> list[str]:
    found = project(name)
    extras: Mapping[str, list[str]] = found.get("optional-dependencies", {})  # type: ignore[assignment]
    return [*found["dependencies"], *(one for more in extras.values() for one in more)]  # type: ignore[misc]


def test_the_distributions_have_one_version() -> None:
    assert len({version(name) for name in PACKAGES}) == 1


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("weir-mq", "weir-raft"),
        ("weir-toc", "weir-raft"),
        ("weir-lab", "weir-mq"),
        ("weir-lab", "weir-toc"),
    ],
)
def test_each_requires_the_one_below_of_the_same_release(name: str, needs: str) -> None:
    found = [one for one in requirements(name) if re.match(rf"{needs}\b", one)]
    assert found
    assert all(one.endswith(f"=={version(needs)}") for one in found)


def test_nothing_below_names_the_lab() -> None:
    for name in ("weir-raft", "weir-toc", "weir-mq"):
        assert not [one for one in requirements(name) if one.startswith("weir-lab")]
    assert requirements("weir-raft") == []
    # The broker and the transport know nothing of each other.
    assert not [one for one in requirements("weir-toc") if one.startswith("weir-mq")]
    assert not [one for one in requirements("weir-mq") if one.startswith("weir-toc")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of all, built from the tree."""
    folder = tmp_path_factory.mktemp("wheels")
    run(
        [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q",
         "--no-deps", "--no-build-isolation", "-w", str(folder),
         *(f"packages/{name}" for name in PACKAGES)],
        cwd=ROOT,
    )  # fmt: skip
    assert len([*folder.glob("*.whl")]) == len(PACKAGES)
    return folder


def run(command: Sequence[str], *, cwd: Path, seconds: float = 200) -> str:
    """Run a command without the paths of this environment; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    environment |= {"SPARK_SUBMIT_OPTS": _LEAN, "SPARK_LAUNCHER_OPTS": _LEAN}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed(folder: Path, wheels: Path, *names: str, lent: bool = False) -> Path:
    """Install wheels with all that they declare into a new environment; return its programs.

    What they declare is downloaded and copied or, if `lent`, linked from the tests' environment.
    """
    venv.create(folder / "venv")
    programs = folder / "venv" / "bin"
    # All of ours in one command: no name of ours is looked up at an index. Compiling every file of
    # Spark and Arrow would take longer than what is tested here, which imports few of them.
    ours = [next(wheels.glob(f"{name.replace('-', '_')}-*.whl")) for name in names]
    run(
        [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install",
         "--disable-pip-version-check", "-q", "--no-compile", *(["--no-deps"] if lent else []),
         "-c", str(ROOT / "constraints.txt"), *map(str, ours)],
        cwd=folder,
    )  # fmt: skip
    if lent:
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        lend(site)
    return programs


def lend(site: Path) -> None:
    """Link what the distributions in a folder require, and what that requires, and no more."""
    ours = {canonicalize_name(one.name): one for one in metadata.distributions(path=[str(site)])}
    todo: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in ours]
    done = set()
    while todo:
        name, extras = one = todo.pop()
        if one in done:
            continue
        done.add(one)
        found = ours.get(canonicalize_name(name)) or metadata.distribution(name)
        if found not in ours.values():
            for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                if not (site / top).exists():
                    (site / top).symlink_to(Path(str(found.locate_file(top))))
        for text in found.requires or ():
            needed = Requirement(text)
            wanted = ("", *extras)
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in wanted):
                todo.append((canonicalize_name(needed.name), frozenset(needed.extras)))


def test_wheels_say_that_they_are_typed(wheels: Path) -> None:
    for name, package in (("weir-raft", "weir_raft"), ("weir-toc", "weir_toc"), ("weir-mq", "weir"),
                          ("weir-lab", "weir_lab")):  # fmt: skip
        (wheel,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as files:
            assert f"{package}/py.typed" in files.namelist(), name


def test_weir_raft_alone_runs_its_example(wheels: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path, wheels, "weir-raft")
    text = (ROOT / "packages/weir-raft/README.md").read_text(encoding="utf-8")
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert "LEADER" in run(
        [str(programs / "python"), "-c", f"{program}\nprint(node.role)"], cwd=tmp_path
    )
    kit = "from weir_raft.testing.rehearsal import Rehearsal as one; print(one.__name__)"
    assert "Rehearsal" in run([str(programs / "python"), "-c", kit], cwd=tmp_path)


def test_weir_toc_needs_no_broker(wheels: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path, wheels, "weir-raft", "weir-toc")
    program = (
        "from weir_toc.endpoint.endpoint import Endpoint\n"
        "one = Endpoint(1, epoch=1, now=5)\n"
        "one.tick(5)\n"
        "print(len(one.take_packets()[0]))"
    )
    assert run([str(programs / "python"), "-c", program], cwd=tmp_path) == "40\n"
    told = run([str(programs / "weir-toc"), "--help"], cwd=tmp_path)
    verbs = re.findall(r"^ {4}(\w+)(?: |$)", told, re.MULTILINE)
    assert verbs == ["controller", "aggregator", "status", "net"]
    program = (
        "from importlib.resources import files\n"
        "import weir_toc.sync\n"
        "found = [files('weir_toc.xdp') / f'switch.{kind}' for kind in ('o', 'c', 'p4')]\n"
        "print(weir_toc.sync.join.__name__, *(len(one.read_bytes()) > 1_000 for one in found))"
    )
    assert run([str(programs / "python"), "-c", program], cwd=tmp_path) == "join True True True\n"


@pytest.fixture
def node(wheels: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Programs of weir-mq with weir-raft alone, and the URL of a broker that they started."""
    programs = installed(tmp_path, wheels, "weir-raft", "weir-mq")
    with subprocess.Popen(
        [programs / "weir", "serve", "--data", tmp_path / "data", "--port", "0", "--until-eof"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in _HIDDEN},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told = ""
        while not (found := re.search(r"\b127\.0\.0\.1:(\d+)|port (\d+)", told)):
            line = process.stdout.readline()
            assert line, told
            told += line
        try:
            yield programs, f"weir://127.0.0.1:{found[1] or found[2]}"
        finally:
            process.terminate()
            process.wait(30)


def test_weir_mq_serves_and_runs_the_first_program(
    node: tuple[Path, str], tmp_path: Path
) -> None:  # fmt: skip
    programs, url = node
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    program = program.replace("weir://localhost:6800", url)
    assert "billed" in run([str(programs / "python"), "-c", program], cwd=tmp_path)
    done = subprocess.run(
        [programs / "weir", "bench"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr == (
        "this verb is part of weir-lab, which is not installed: pip install weir-lab\n"
    )
    assert "bench" not in run([str(programs / "weir"), "--help"], cwd=tmp_path)


def test_weir_lab_brings_the_demo_and_spark(wheels: Path, tmp_path: Path) -> None:
    # Lent: to unpack Spark and Arrow again takes longer than all that is done with them here.
    programs = installed(tmp_path, wheels, *PACKAGES, lent=True)
    told = run(
        [str(programs / "weir"), "demo", "--flights", "2000", "--json"], cwd=tmp_path, seconds=150
    )
    found = json.loads(told)
    assert found["schema"] == "weir.demo/1"
    # Spark read what the consumers got: the demo compares their ledgers.
    assert (found["clean"], found["intact"], found["delivered"]) == (True, True, 2000)
    assert "bench" in run([str(programs / "weir"), "--help"], cwd=tmp_path)
