"""Jobs that are given to a Spark cluster by `spark-submit`, as a user gives them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyspark

from weir.server.interpreter import environment
from weir.testing.nodes import HOST
from weir_lab.bench.harness.machine import family
from weir_lab.spark_cluster.environments import SHIPPED
from weir_lab.spark_cluster.standalone import LEAN, SparkFailed, kill, last_words

_LOOK_SECONDS = 0.2
_SAID_LINES = 12
#: What a Spark of another place would be found by.
_HIDDEN = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON",
           "PYSPARK_SUBMIT_ARGS")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """A program and its arguments, and the name under which the master is to list it."""

    name: str
    program: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submitter:
    """Submits jobs to a master, with the environment that their executors unpack.

    `folder` is where the driver runs, and where its output goes; `cores` are all that a job gets.
    """

    master: str
    archive: Path
    folder: Path
    java: Path
    cores: int
    memory: str = "700m"
    seconds: float = 240.0

    def submit(self, job: Job, check: Callable[[], None]) -> str:
        """Run a job to its end and return what it printed; `check` is called meanwhile.

        Raises `SparkFailed` if it fails or takes longer than `seconds`.
        """
        self.prepare()
        printed, said = (self.folder / f"{job.name}.{kind}" for kind in ("out", "log"))
        with printed.open("wb") as out, said.open("wb") as log:
            process = self.start(job, out, log)
        deadline = time.monotonic() + self.seconds
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SparkFailed(
                        f"{job.name} did not end within {self.seconds:g} s: {last_words(said)}"
                    )
                check()
                time.sleep(_LOOK_SECONDS)
        finally:
            kill(family(process.pid))
            process.wait()
        if process.returncode:
            raise SparkFailed(f"{job.name} failed:\n{last_words(said, _SAID_LINES)}")
        return printed.read_text(encoding="utf-8", errors="replace")

    def prepare(self) -> None:
        """Make the folder that a driver runs in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._link_environment()

    def start(self, job: Job, out: BinaryIO, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a job in a folder that was prepared; what it prints goes to `out`, all else to
        `log`. The caller ends it.
        """
        return subprocess.Popen(
            self.command(job), stdin=subprocess.DEVNULL, stdout=out, stderr=log, cwd=self.folder,
            env=self._variables(), start_new_session=True,
        )  # fmt: skip

    def command(self, job: Job) -> list[str]:
        """Return the command line: what belongs to the cluster, then the job as it is."""
        conf = [word for pair in self.settings().items() for word in ("--conf", "=".join(pair))]
        return [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master", self.master, "--name", job.name,
            "--archives", f"{self.archive}#{SHIPPED}",
            "--total-executor-cores", str(self.cores), "--executor-cores", "1",
            "--executor-memory", self.memory, "--driver-memory", self.memory,
            *conf, str(job.program), *job.arguments,
        ]  # fmt: skip

    def settings(self) -> Mapping[str, str]:
        """Return the settings of Spark."""
        lean = f"{LEAN} -Djava.io.tmpdir={self.folder}"
        return {
            "spark.pyspark.python": f"./{SHIPPED}/bin/python",
            "spark.pyspark.driver.python": sys.executable,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.extraJavaOptions": lean,
            "spark.executor.extraJavaOptions": LEAN,
            # A job begins when all its executors are there, so that it is seen to use them.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.cores),
            "spark.ui.enabled": "false",
        }

    def _variables(self) -> dict[str, str]:
        found = {name: value for name, value in environment().items() if name not in _HIDDEN}
        return {
            **found,
            "JAVA_HOME": str(self.java),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        }

    def _link_environment(self) -> None:
        """Let the driver find an environment where executors unpack theirs: it plans streams in
        Python processes that are started by the same name.
        """
        link = self.folder / SHIPPED
        if not link.is_symlink():
            os.symlink(sys.prefix, link)
