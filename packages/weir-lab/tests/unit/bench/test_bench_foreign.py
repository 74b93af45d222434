"""What others used beside a run: neither it, nor what it started, nor what ended meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from weir_lab.bench.harness import machine
from weir_lab.bench.harness.machine import Foreign, cpu_seconds

#: More than the clocks of a kernel are apart.
SPENT_S, NEAR_S = 0.6, 0.15
SPEND = f"import time\nwhile time.process_time() < {SPENT_S}: pass\n"
THEN_WAIT = SPEND + "print(flush=True)\ninput()\n"


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the machine have been busy for so long as the list says: others than us do not count."""
    told = [100.0]
    monkeypatch.setattr(machine, "busy_cpu_seconds", lambda: told[0])
    return told


def test_what_an_ended_process_of_the_run_used_is_not_foreign(busy: list[float]) -> None:
    foreign, own = Foreign(), time.process_time()
    subprocess.run([sys.executable, "-S", "-c", SPEND], check=True)
    busy[0] += 5.0
    used = foreign.cpu_s()
    assert used == pytest.approx(5.0 - SPENT_S - (time.process_time() - own), abs=NEAR_S)


def test_what_a_running_process_of_the_run_used_is_not_foreign(busy: list[float]) -> None:
    foreign, own = Foreign(), time.process_time()
    # It is the child of a child.
    command = ["sh", "-c", f"{sys.executable} -S -c '{THEN_WAIT}'; true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        busy[0] += 5.0
        used = foreign.cpu_s()
        process.stdin.close()
    assert used == pytest.approx(5.0 - SPENT_S - (time.process_time() - own), abs=NEAR_S)


def test_what_another_process_used_is_foreign(busy: list[float]) -> None:
    # Whoever started it has ended, so it is nobody's that belongs to the run.
    command = f"{sys.executable} -S -c '{THEN_WAIT}' <&3 & echo $!"
    with subprocess.Popen(
        ["sh", "-c", f"exec 3<&0; {command}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.wait()
        foreign, own = Foreign(), time.process_time()
        process.stdout.readline()
        used = cpu_seconds(pid)
        assert used is not None
        assert used > SPENT_S / 2
        busy[0] += 5.0
        assert foreign.cpu_s() == pytest.approx(5.0 - (time.process_time() - own), abs=NEAR_S)
        process.stdin.close()


def test_cores_are_the_mean_since_it_was_made(
    busy: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    foreign = Foreign()
    now[0] += 4.0
    busy[0] += 6.0
    assert foreign.cores() == pytest.approx(1.5, abs=NEAR_S / 4)


def test_where_the_kernel_tells_nothing_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_cpu_seconds", lambda: None)
    assert Foreign().cpu_s() is None
    assert Foreign().cores() is None
