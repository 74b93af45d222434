"""`tools/paired` compares two commits of a small repository, by commands that are quick."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

TOOL = Path(__file__).parents[2] / "tools" / "paired"
PACKAGE = "packages/one/src/paired_by_turns/__init__.py"
#: Tells which commit it is of, and says the figure that its commit has.
SAY = "import json, paired_by_turns as one; print(json.dumps({'runs': [{'rate': one.RATE}]}))"


def tool() -> Any:
    loader = importlib.machinery.SourceFileLoader("paired_tool", str(TOOL))
    spec = importlib.util.spec_from_loader("paired_tool", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    return module


class Repository:
    """Two commits, whose rates are 100 and 120."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")
        for rate in (100, 120):
            self.commit(PACKAGE, f'"""A rate."""\nRATE = {rate}\n')

    def git(self, *arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", *names, *arguments], cwd=self.root, capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")

    def paired(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOOL), *arguments]
        return subprocess.run(
            command, cwd=self.root, env={**os.environ, **variables}, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip

    def compared(self, code: str, *arguments: str, ends: int = 0, **variables: str) -> Any:
        """Return what is told of a Python command, by the key runs.0.rate."""
        bench = shlex.join(["python", "-c", code])
        done = self.paired(
            "HEAD~1", "HEAD", "--bench", bench, "--key", "runs.0.rate", "--json", *arguments,
            **variables,
        )  # fmt: skip
        assert done.returncode == ends, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    root = tmp_path / "repository"
    root.mkdir()
    return Repository(root)


def test_each_run_finds_the_code_of_its_commit(repository: Repository) -> None:
    told = repository.compared(SAY)
    (bench,) = told["benches"]
    assert (bench["first"], bench["second"]) == ([100.0] * 7, [120.0] * 7)
    assert bench["median"] == pytest.approx(1.2)
    assert (bench["low"], bench["high"]) == (bench["median"], bench["median"])
    assert bench["narrow"]
    assert bench["enough"]
    assert told["second"] == repository.git("rev-parse", "HEAD").strip()
    assert len(repository.git("worktree", "list").splitlines()) == 1, "they are removed"


def test_less_may_be_better_and_what_is_worse_is_told(repository: Repository) -> None:
    told = repository.compared(SAY, "--lower", "--pairs", "6", ends=1)
    assert told["benches"][0]["median"] == pytest.approx(1 / 1.2)
    assert told["below"] == ["bench"]
    assert repository.compared(SAY, "--lower", "--pairs", "6", "--least", "0.8")["below"] == []


def test_who_is_first_alternates(repository: Repository, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = f"import os; open(os.environ['ORDER'], 'a').write(str(one.RATE) + ' '); {SAY}"
    code = code.replace("import os;", "import os, paired_by_turns as one;")
    repository.compared(code, "--pairs", "6", ORDER=str(order))
    assert order.read_text().split() == ["100", "120", "120", "100"] * 3


def wavering(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Return a command whose figure grows with each run, so that no two ratios are near."""
    count = tmp_path / "count"
    count.write_text("")
    code = (
        "import os, json; open(os.environ['COUNT'], 'a').write('.'); "
        "print(json.dumps({'runs': [{'rate': 2 ** (len(open(os.environ['COUNT']).read()) % 3)}]}))"
    )
    return code, {"COUNT": str(count)}


def test_where_ratios_are_far_apart_more_pairs_are_run(
    repository: Repository, tmp_path: Path
) -> None:
    code, variables = wavering(tmp_path)
    options = ("--pairs", "6", "--most", "9", "--least", "0.1")
    (bench,) = repository.compared(code, *options, **variables)["benches"]
    assert len(bench["ratios"]) == 9
    assert bench["high"] - bench["low"] > 0.03
    assert not bench["narrow"]


def test_no_pair_begins_that_would_not_end_in_time(repository: Repository) -> None:
    code = f"import time; time.sleep(0.4); {SAY}"
    began = time.monotonic()
    (bench,) = repository.compared(code, "--seconds", "3", ends=2)["benches"]
    assert time.monotonic() - began < 30
    assert 1 <= len(bench["ratios"]) <= 3
    assert bench["low"] is None
    assert not bench["enough"]


def test_a_run_that_takes_too_long_is_ended_with_what_it_started(
    repository: Repository, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, os, time; "
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL); "
        "open(os.environ['CHILD'], 'w').write(str(child.pid)); time.sleep(600)"
    )
    told = repository.compared(code, "--timeout", "3", ends=2, CHILD=str(child))
    assert "took more than 3 s" in told["failed"][0]
    number, until = int(child.read_text()), time.monotonic() + 10
    while is_running(number):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('it broke')", "it broke"),
        ("print('no object')", "printed no JSON"),
        ("print('{\"runs\": []}')", "has no '0' of 'runs.0.rate'"),
        ('print(\'{"runs": [{"rate": 0}]}\')', "is 0: a ratio needs numbers above 0"),
        ('print(\'{"runs": [{"rate": true}]}\')', "is True"),
    ],
)
def test_what_cannot_be_told_is_said(repository: Repository, code: str, said: str) -> None:
    told = repository.compared(code, ends=2)
    assert said in told["failed"][0]


def test_code_that_is_found_elsewhere_is_not_measured(repository: Repository) -> None:
    repository.commit("packages/one/src/sys/__init__.py", '"""Never found here."""\n')
    done = repository.paired("HEAD~1", "HEAD", "--bench", "true", "--key", "rate")
    assert done.returncode == 2
    assert "sys is found in built-in" in done.stderr
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_a_commit_that_is_not_there_is_told(repository: Repository) -> None:
    done = repository.paired("HEAD~1", "nowhere", "--bench", "true", "--key", "rate")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("--bench", "true"), ("--all", "--bench", "true", "--key", "a"),
     ("--all", "--pairs", "5"), ("--all", "--pairs", "8", "--most", "7"),
     ("--all", "--only", "nothing")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(repository: Repository, arguments: tuple[str, ...]) -> None:
    assert "usage" in repository.paired("HEAD~1", "HEAD", *arguments).stderr


@pytest.mark.parametrize(
    ("count", "ends"),
    [(5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (12, (2, 9)), (20, (5, 14))],
)
def test_the_interval_goes_by_the_order(count: int, ends: tuple[int, int] | None) -> None:
    """The places of the table of the sign test's intervals at 95 %."""
    assert tool().interval([float(one) for one in reversed(range(count))]) == ends


def test_the_benches_of_all_paths_can_be_run() -> None:
    from weir_lab.bench import burst, latency, throughput, timeliness
    from weir_lab.bench.consumers import handlers
    from weir_lab.cli.bench import app

    results = {
        "burst": burst, "latency": latency, "throughput": throughput, "timeliness": timeliness,
        "handlers": handlers,
    }  # fmt: skip
    commands: Any = typer.main.get_command(app)
    benches = tool().ALL
    assert len({bench.name for bench in benches}) == len(benches) == 9
    for bench in benches:
        first, verb, name, *options = shlex.split(bench.command)
        assert (first, verb) == ("weir", "bench")
        with commands.commands[name].make_context(name, options) as context:
            assert context.params["as_json"]
        assert bench.key in results[name].Result.__struct_fields__
