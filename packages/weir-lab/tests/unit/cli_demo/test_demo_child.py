"""A process of the demo: it tells, it ends when told, and it ends with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from weir.server.interpreter import environment
from weir_lab.demo.processes.child import Child, PartFailed
from weir_lab.demo.processes.worker import ORPHANED, Status

SECONDS = 20.0

#: A worker that does what its task says, as a module of its own.
WORKER = """
import subprocess, sys
import msgspec
from weir_lab.demo.processes.worker import Stage, work
from weir.errors import WeirError

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]

class Task(msgspec.Struct):
    do: str

def perform(task: Task, stage: Stage) -> None:
    if task.do == "fail":
        raise WeirError("no runway")
    if task.do == "crash":
        raise ZeroDivisionError("no wings")
    if task.do == "leave":
        stage.tell("left", subprocess.Popen(SLEEPS, process_group=0).pid)
        return
    if task.do == "vanish":
        import os
        sys.stderr.write("out of fuel\\n"); sys.stderr.flush(); os._exit(9)
    if task.do == "spawn":
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen(SLEEPS)
        stage.tell("spawned", grandchild.pid)
        stage.cue.wait()
    print("noise on stdout", flush=True)
    stage.tell("waits", 1, 2)
    stage.cue.wait()
    stage.tell("done", 2, 2)

work(Task, perform)
"""


class Task(msgspec.Struct):
    do: str


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Child]:
    (tmp_path / "demo_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda do: Child("part", "demo_worker", Task(do), tmp_path)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def worker_process(folder: Path, do: str, group: int | None = None) -> subprocess.Popen[bytes]:
    script = folder / "demo_worker.py"
    script.write_text(WORKER)
    return subprocess.Popen(
        [sys.executable, str(script), msgspec.json.encode(Task(do)).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        process_group=group,
    )


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_tells_waits_for_the_cue_and_ends(start: Callable[[str], Child]) -> None:
    with start("wait") as child:
        until(lambda: child.status == Status("waits", 1, 2))
        assert not child.done
        child.cue()
        until(lambda: child.done)
        assert child.status == Status("done", 2, 2)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("fail", "part: no runway"),
        ("crash", "part: ZeroDivisionError: no wings"),
        ("vanish", "part: out of fuel"),
    ],
)
def test_its_failure_has_a_reason(start: Callable[[str], Child], do: str, reason: str) -> None:
    with start(do) as child, pytest.raises(PartFailed, match=f"^{reason}$"):
        until(lambda: child.done)


def test_a_child_that_is_gone_takes_no_cue(start: Callable[[str], Child]) -> None:
    with start("vanish") as child:
        with pytest.raises(PartFailed):
            until(lambda: child.done)
        with pytest.raises(PartFailed, match="out of fuel"):
            child.cue()


def test_leaving_the_block_ends_it(start: Callable[[str], Child]) -> None:
    with start("wait") as child:
        until(lambda: child.status.state == "waits")
    with pytest.raises(PartFailed, match="part: ended by SIGKILL"):
        _ = child.done


def test_one_that_will_not_end_ends_with_all_it_started(start: Callable[[str], Child]) -> None:
    with start("spawn") as child:
        until(lambda: child.status.state == "spawned")
        grandchild = child.status.done
        assert not gone(grandchild)
    assert gone(grandchild)


def test_what_one_that_has_ended_left_behind_ends_too(start: Callable[[str], Child]) -> None:
    with start("leave") as child:
        until(lambda: child.done)
        grandchild = child.status.done
        assert not gone(grandchild)
    assert gone(grandchild)


def test_one_whose_parent_is_gone_ends_with_what_it_started(tmp_path: Path) -> None:
    worker = worker_process(tmp_path, "spawn", group=0)
    assert worker.stdin is not None
    assert worker.stdout is not None
    with worker.stdout:
        status = msgspec.json.decode(worker.stdout.readline(), type=Status)
        worker.stdin.close()
        assert worker.wait(SECONDS) == -signal.SIGKILL
    until(lambda: gone(status.done))


def test_it_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    worker = worker_process(tmp_path, "wait")
    assert worker.stdin is not None
    assert worker.stdout is not None
    with worker.stdout:
        assert msgspec.json.decode(worker.stdout.readline(), type=Status).state == "waits"
        worker.stdin.close()  # as the end of the parent would
        assert worker.wait(SECONDS) == ORPHANED
