"""The Spark job's process: flights joined with weather, until all of both are counted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from weir.spark.session import session
from weir_lab.demo.processes.worker import Stage, work
from weir_lab.demo.tasks import COUNTED, PipelineTask
from weir_lab.demo.weather import job

#: Scratch files go where they are removed with the rest. A JVM that lives for a minute never earns
#: back what a second compiler and a concurrent collector cost: without, it needs a third less CPU.
_JAVA = "-Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def stream(task: PipelineTask, stage: Stage) -> None:
    """Start Spark at the cue, run the job until the next one, write what it counted to `out`."""
    stage.tell("waits")
    stage.wait_for_cue()
    stage.tell("starts Java")
    # The short-lived JVM that finds out how to start the real one leaves no trace in /tmp either.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"
    settings: dict[str, Any] = {
        "spark.driver.extraJavaOptions": _JAVA.format(folder=task.scratch),
    }
    spark = session("weir-demo", **settings)
    gateway: Any = spark.sparkContext._gateway
    java: subprocess.Popen[bytes] = gateway.proc
    stage.tell("starts the stream")

    read = 0

    def progress(messages: int) -> None:
        nonlocal read
        read = messages
        stage.tell("reads" if messages else "waits for its first batch", messages)

    def is_stopped() -> bool:
        if stopped := stage.cue.is_set():
            stage.tell("adds up", read)
        return stopped

    counted = job.join(
        spark,
        task.url,
        task.out,
        f"{task.scratch}/checkpoint",
        progress=progress,
        is_stopped=is_stopped,
    )
    (Path(task.out) / COUNTED).write_bytes(msgspec.json.encode(counted))
    stage.tell("done", counted.flights + counted.observations + counted.bad)
    # Everything is written: a tidy shutdown would only cost seconds.
    java.kill()
    java.wait()


if __name__ == "__main__":
    work(PipelineTask, stream)
