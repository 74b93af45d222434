"""`session` starts Spark by itself: with the machine's Java, or with none at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from weir.server.interpreter import environment

if TYPE_CHECKING:
    from rigs.spark_node import Node

#: A session that somebody else made: it was never told of `format("weir")`, and finds it by name.
PLAIN = """
import sys
from pyspark.sql import SparkSession
from weir.spark.session import use_java
print(use_java(), flush=True)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
query = (
    spark.readStream.format("weir").option("url", sys.argv[1]).option("topic", sys.argv[2]).load()
    .writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
)
query.awaitTermination()
print(*(bytes(row.value).decode() for row in spark.table("seen").orderBy("offset").collect()))
"""


def test_the_session_has_its_settings(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    # Whichever Java was found first: the machine's own, if it has one.
    assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").exists()


def path_without_java(folder: Path) -> str:
    """A PATH with every command that the machine has, but `java`."""
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            link = folder / command.name
            if not command.name.startswith("java") and not link.exists():
                link.symlink_to(command)
    return str(folder)


@pytest.mark.timeout(240)
def test_without_java_the_packaged_one_runs_a_stream(node: Node, tmp_path: Path) -> None:
    node.create("no-java")
    node.fill("no-java", 0, [b"one", b"two"])
    commands = tmp_path / "commands"
    commands.mkdir()
    # Of Spark it uses what is installed, and not the home that other tests have.
    hidden = ("JAVA_HOME", "SPARK_HOME")
    given = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, node.url, "no-java"],
        env={
            **given,
            "PATH": path_without_java(commands),
            "PYTHONPATH": environment()["PYTHONPATH"],
            "PYSPARK_PYTHON": sys.executable,
            # As the session of the other tests: it runs for a few seconds.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home, values = done.stdout.splitlines()
    assert Path(home).is_relative_to(tmp_path / "cache" / "weir")
    assert values == "one two"
