"""A home of Spark for tests, whose Python processes start in a third of the time.

Spark starts a Python process for the plan, the reader and the writer of a query. It puts
`SPARK_HOME/python/lib/pyspark.zip` in front of their path, and Python keeps no bytecode of what it
imports from an archive: each process compiles PySpark anew, for 0.8 s. A home without that archive
lets them import the installed PySpark, which is the same source.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

#: What a JVM that lives for minutes never earns back is left out: a second compiler, threads that
#: collect garbage, a file of counters in /tmp.
_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
#: The folder of a home that holds the archive.
_ARCHIVES = "python"


def use_quick_spark(folder: Path) -> None:
    """Let all Sparks that this process and its children start from now on be quick.

    `folder` must be empty; it gets links to what is installed, for as long as Spark runs.
    """
    installed = Path(pyspark.__file__).parent
    for one in installed.iterdir():
        if one.name != _ARCHIVES:
            (folder / one.name).symlink_to(one)
    os.environ["SPARK_HOME"] = str(folder)
    os.environ["SPARK_SUBMIT_OPTS"] = _LEAN
    os.environ["SPARK_LAUNCHER_OPTS"] = _LEAN
