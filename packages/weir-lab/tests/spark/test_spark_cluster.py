"""A real Spark cluster: its processes; and, slow, what `make cluster` does, with few flights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weir.spark.session import use_java
from weir_lab.spark_cluster.environments import Environments, SparkHome
from weir_lab.spark_cluster.run import run, told
from weir_lab.spark_cluster.standalone import Standalone

ROOT = Path(__file__).parents[4]


def processes(word: str) -> list[str]:
    """The command lines of processes that name `word`."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


def test_a_master_and_a_worker_come_up_and_end(tmp_path: Path) -> None:
    home = SparkHome(Path(sys.prefix))
    with Standalone(tmp_path, use_java(), home, [home]) as cluster:
        assert cluster.applications() == []
        (line,) = [one for one in processes(cluster.url) if "/bin/java" in one.split()[0]]
        assert line.split()[-1] == cluster.url
    assert processes(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_run_on_the_cluster_that_they_are_submitted_to(tmp_path: Path) -> None:
    said: list[str] = []
    environments = Environments(ROOT, ROOT / "build" / "cluster")
    trial = run(tmp_path, environments, 3_000, said.append)
    assert (trial.flights, trial.copied_rows) == (3_000, 3_000)
    names = [ran.application.name for ran in trial.jobs]
    assert names == ["rows", "rows", "delays"]
    assert len({ran.application.id for ran in trial.jobs}) == 3
    assert {ran.application.workers for ran in trial.jobs} == {("worker-1", "worker-2")}
    # Each submission has executors of its own; of the second, one was killed, and the other may
    # have read all there was.
    assert len(trial.environments) >= 3
    assert any("an executor is killed" in text for text in said)
    assert f"applications that {trial.master} lists:" in told(trial)
    assert said
