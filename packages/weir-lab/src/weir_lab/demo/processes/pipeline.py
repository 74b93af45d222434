"""The Spark job's process: the delays job over the flights, until all of them are counted."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec

from weir.spark.jobs import delays
from weir.spark.session import session
from weir_lab.demo.flights import TOPIC
from weir_lab.demo.processes.worker import Stage, work
from weir_lab.demo.tasks import COUNTED, Counted, PipelineTask

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

    def stop_at_cue() -> None:
        stage.wait_for_cue()
        stage.tell("adds up", counted_so_far)
        for query in spark.streams.active:
            query.stop()

    counted_so_far = 0

    def progress(messages: int) -> None:
        nonlocal counted_so_far
        counted_so_far = messages
        stage.tell("reads" if messages else "waits for its first batch", messages)

    # The job's own thread waits for its query, and hears of nothing else meanwhile.
    threading.Thread(target=stop_at_cue, name="weir-demo-stop", daemon=True).start()
    result = delays.run(
        spark,
        task.url,
        TOPIC,
        task.out,
        f"{task.scratch}/checkpoint",
        progress=progress,
        available_now=False,
    )
    counted = Counted(result.flights, result.cancelled, result.rows, result.path)
    (Path(task.out) / COUNTED).write_bytes(msgspec.json.encode(counted))
    stage.tell("done", result.flights)
    # Everything is written: a tidy shutdown would only cost seconds.
    java.kill()
    java.wait()


if __name__ == "__main__":
    work(PipelineTask, stream)
