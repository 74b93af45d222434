"""What is found by its name at run time is there: modules that are run, and what is pickled.

A name in a string is followed by no refactoring tool. So every string of the source that reads as
the name of a module is resolved here, each module that can be run is started, and what is pickled
by reference is unpickled in another process.
"""

from __future__ import annotations

import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer

import weir
from rigs.drawn_mutants import drawn
from weir.cli.main import VERBS
from weir.model.ids import Address
from weir.protocol.client.messages import TopicInfo
from weir.spark.fetcher import Portion, portions
from weir.spark.options import Options
from weir.spark.planning import Cut
from weir.spark.source import BatchReader, StreamReader, Task, WeirDataSource
from weir.spark.stream import Stream
from weir_lab.sim import power, run
from weir_lab.sim.mutants import redraw

ROOT = Path(__file__).parents[4]
#: Every import root of the repository, with the folder that it lies in.
ROOTS = {
    start.parent.name: start.parent
    for pattern in ("src/*/__init__.py", "packages/*/src/*/__init__.py")
    for start in ROOT.glob(pattern)
}
NAME = re.compile(rf"(?:{'|'.join(sorted(ROOTS))})(?:\.[a-z_0-9]+)+")
RUN = re.compile(rf"-m ({NAME.pattern}|weir)\b(?!\.)")
QUOTED = re.compile(rf"""["']({NAME.pattern})(?:["']|\.\{{)""")
PATHS = os.pathsep.join(sorted({str(root.parent) for root in ROOTS.values()}))
#: Lines that run a module stand in these, beside the source.
#: Without the decisions: they have the names of when they were made.
TEXTS = (
    "Makefile", "README.md", "docs/*.md", "docs/how-to/*.md", "docs/reference/*.md",
    "deploy/**/*", "scripts/*", ".ci/**/*", "tools/*",
)  # fmt: skip
#: What says that a module was not found, or cannot be run.
_NOT_STARTED = re.compile(
    r"No module named|ImportError|ModuleNotFoundError|cannot be directly executed"
)
_START_SECONDS = 20
#: How many of the modules that can be run `make test` starts.
DRAWN = 20


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the repository, with its name."""
    for root in ROOTS.values():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def is_run(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string that reads as a module's name; of an f-string the package it begins with."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for name in QUOTED.findall(line):
            yield number, name


def is_there(name: str) -> bool:
    """Whether a name is that of a module, or of something in one."""
    try:
        if name == VERBS:  # a group of entry points
            return True
        return find_spec(name) is not None or pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def test_every_string_that_names_a_module_names_one_that_is_there() -> None:
    found = [(path, line, name) for _, path in sources() for line, name in strings(path)]
    assert len(found) > 50, "the source has them"
    missing = [f"{path}:{line}: {name}" for path, line, name in found if not is_there(name)]
    assert not missing, "\n".join(missing)


def runnable(name: str) -> bool:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return False
    if spec.submodule_search_locations:
        return find_spec(f"{name}.__main__") is not None
    return is_run(Path(spec.origin))


def test_every_line_that_runs_a_module_names_one_that_runs() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for pattern in TEXTS
        for path in ROOT.glob(pattern)
        if path.is_file() and path.name != "PROOF.md"  # it has the commands of when it was measured
        for name in RUN.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    found |= {
        (name, module)
        for name, path in sources()
        for module in RUN.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 10
    wrong = sorted(f"{where}: -m {name}" for where, name in found if not runnable(name))
    assert not wrong, "\n".join(wrong)


def test_the_commands_and_what_others_find_by_name_are_there() -> None:
    declared = []
    for path in [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
        declared += [*project.get("scripts", {}).values()]
        for group in project.get("entry-points", {}).values():
            declared += [*group.values()]
    assert "weir.cli.main:run" in declared
    for target in declared:
        assert pkgutil.resolve_name(target) is not None
    # Spark looks for `DefaultSource` in pyspark_*; the others stand in what users wrote.
    assert pkgutil.resolve_name("pyspark_weir:DefaultSource").name() == "weir"
    for name in ("weir.sync", "weir.errors", "weir.testing", "weir.testing.pytest_worlds"):
        assert is_there(name), name


def can_be_run() -> list[str]:
    names = [name for name, path in sources() if is_run(path)]
    assert "weir.server.processes.shard_process" in names
    assert "weir.app.worker" in names
    return names


def started(name: str, folder: Path) -> str:
    """Run a module with a word that none of them knows; return what keeps it from starting."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", name, "--no-such-word"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
    text = said.decode(errors="replace")
    return f"{name}: {text}" if _NOT_STARTED.search(text) or not runnable(name) else ""


def all_start(names: list[str], folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        failed = [told for told in pool.map(lambda name: started(name, folder), names) if told]
    assert not failed, "\n".join(failed)


def test_drawn_modules_that_can_be_run_start(tmp_path: Path) -> None:
    """Each imports what it needs, which type checkers and other tests find, too."""
    all_start(drawn(can_be_run(), DRAWN), tmp_path)


@pytest.mark.slow
def test_each_module_that_can_be_run_starts(tmp_path: Path) -> None:
    all_start(can_be_run(), tmp_path)


def test_what_cannot_be_imported_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.py").write_text('import nothing_there\nif __name__ == "__main__": pass\n')
    monkeypatch.setattr(sys.modules[__name__], "PATHS", f"{PATHS}{os.pathsep}{tmp_path}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match=r"gone: .*No module named"):
        all_start(["gone"], tmp_path)


UNPICKLE = """
import pickle, sys
for one in pickle.load(sys.stdin.buffer):
    found = pickle.loads(one)
    name = getattr(found, "__qualname__", type(found).__name__)
    print(f"{found.__module__}:{name}")
"""


def unpickled(pickles: list[bytes]) -> list[str]:
    """Unpickle each in a process that has imported nothing; return what came out."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", UNPICKLE],
        input=pickle.dumps(pickles),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": PATHS},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def by_reference(values: list[Any], dumps: Any) -> None:
    pickles = [dumps(value) for value in values]
    expected = [
        f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"
        for value in values
    ]
    assert unpickled(pickles) == expected
    for value, found in zip(values, pickles, strict=True):
        assert value.__module__.encode() in found


def test_what_spark_pickles_is_found_by_its_workers() -> None:
    """The source is pickled for the planner, its readers and tasks for each worker."""
    options = Options.parse({"url": "weir://127.0.0.1", "topic": "t"})
    info = TopicInfo(7, "default", "t", "partition", [Address(0, 0, 7 << 16)])
    parts = portions(options, info, Cut(7, {0: 0}), Cut(7, {0: 4}))
    assert [type(one) for one in parts] == [Portion]
    tasks = [Task(tuple(parts))]
    made = [WeirDataSource, BatchReader(options), StreamReader(options), *tasks]
    by_reference(made, CloudPickleSerializer().dumps)
    by_reference([Stream, options], pickle.dumps)


def test_what_goes_to_processes_of_a_sweep_is_found_there() -> None:
    pooled = {
        name
        for name, path in sources()
        if "ProcessPoolExecutor(" in path.read_text(encoding="utf-8")
    }
    assert pooled == {run.__name__, power.__name__, redraw.__name__}, "name their work below"
    work = [run.run_drawn, run.run_seed, power._measure_named, redraw._hunt_named]
    by_reference([*work], pickle.dumps)


def test_the_command_says_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "weir.cli", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
        timeout=60,
        check=False,
    )
    assert weir.__version__ in done.stdout
