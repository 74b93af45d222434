"""The environments of a Spark cluster: one for each machine's Spark, and the one that is shipped.

They are made once in a folder and kept; what they were made of is written beside them, and another
release of PySpark or another list of constraints makes them anew. The distributions of weir are
installed anew each time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from weir.errors import WeirError

#: The name under which Spark unpacks the shipped environment where an executor runs.
SHIPPED = "environment"
#: What Spark's Python workers need beside Spark: neither its jars nor Java are shipped.
SHIPPED_EXTRA = "spark-worker"
_DISTRIBUTIONS = ("weir-raft", "weir-mq")
_INSTALL_SECONDS = 600.0
_BUILD_SECONDS = 120.0
_TOLD_CHARACTERS = 2_000
#: Where a line says what an environment was made of.
_MADE_OF = "made-of.txt"
#: Hidden from pip and from what it starts: they would find the packages of this environment.
_HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}


class NotInstalled(WeirError):
    """An environment could not be made; the message holds what pip said last."""


@dataclass(frozen=True, slots=True)
class SparkHome:
    """An environment with PySpark, and nothing of weir."""

    environment: Path

    @property
    def folder(self) -> Path:
        """Where Spark lies, as SPARK_HOME names it."""
        return next(self.environment.glob("lib/python3*/site-packages/pyspark"))


class Environments:
    """Makes the environments in a folder, out of a checkout with its list of constraints."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        """Take where the distributions are, and where the environments go.

        Raises `NotInstalled` if that is no checkout.
        """
        self._checkout = checkout
        self._folder = folder
        self._constraints = checkout / "constraints.txt"
        if not (self._constraints.is_file() and (checkout / "packages").is_dir()):
            raise NotInstalled(f"{checkout} is no checkout of weir: run this in its root")
        folder.mkdir(parents=True, exist_ok=True)

    def spark(self, name: str) -> SparkHome:
        """Return an environment with the PySpark that runs here, at a path of its own."""
        made_of = f"pyspark=={version('pyspark')}"
        first = self._made("spark", made_of, [made_of])
        place = self._folder / name
        if not _is_made_of(place, made_of):
            shutil.rmtree(place, ignore_errors=True)
            # The files are the same ones: so that three of them take the room of one.
            shutil.copytree(first, place, symlinks=True, copy_function=_linked)
        return SparkHome(place)

    def pack(self) -> Path:
        """Return an archive of an environment with weir and what it needs in Spark's workers.

        It can be unpacked anywhere: only its programs' first lines name the place where it was
        made, and Spark starts none of them but `bin/python`.
        """
        wheels = self._wheels()
        needs = [f"{next(w for w in wheels if 'weir_mq' in w.name)}[{SHIPPED_EXTRA}]"]
        needs += [str(wheel) for wheel in wheels if "weir_mq" not in wheel.name]
        listed = self._constraints.read_bytes() + self._project("weir-mq")
        made_of = f"{SHIPPED_EXTRA} {hashlib.sha256(listed).hexdigest()}"
        place = self._made("shipped", made_of, needs)
        # Of the same version as before, and perhaps of other code.
        self._pip(place, ["--no-deps", "--force-reinstall", *map(str, wheels)])
        archive = self._folder / f"{SHIPPED}.tar.gz"
        write_archive(place, archive)
        return archive

    def _made(self, name: str, made_of: str, needs: Sequence[str]) -> Path:
        place = self._folder / name
        if not _is_made_of(place, made_of):
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "venv", "--without-pip", str(place)], _BUILD_SECONDS)
            self._pip(place, needs)
            (place / _MADE_OF).write_text(made_of, encoding="utf-8")
        return place

    def _pip(self, place: Path, words: Sequence[str]) -> None:
        _run(
            [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install",
             "--disable-pip-version-check", "-q", "-c", str(self._constraints), *words],
            _INSTALL_SECONDS,
        )  # fmt: skip

    def _wheels(self) -> list[Path]:
        folder = self._folder / "wheels"
        shutil.rmtree(folder, ignore_errors=True)
        for name in _DISTRIBUTIONS:
            _run(
                [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q",
                 "--no-deps", "--no-build-isolation", "-w", str(folder),
                 str(self._checkout / "packages" / name)],
                _BUILD_SECONDS,
            )  # fmt: skip
        return sorted(folder.glob("*.whl"))

    def _project(self, name: str) -> bytes:
        return (self._checkout / "packages" / name / "pyproject.toml").read_bytes()


def write_archive(environment: Path, archive: Path) -> None:
    """Write an environment's files to `archive`, a .tar.gz whose paths begin in the environment.

    Raises `NotInstalled` if it holds Spark's jars, which every machine of a cluster has.
    """
    if jars := next(environment.glob("lib/python3*/site-packages/pyspark/jars"), None):
        raise NotInstalled(
            f"{jars} would be shipped with every job: install the extra {SHIPPED_EXTRA} in place "
            "of spark, for the machines of a cluster have Spark"
        )
    aside = archive.with_suffix(".part")
    # Written fast rather than small: it goes no further than this machine.
    with tarfile.open(aside, "w:gz", compresslevel=1) as file:
        for path in sorted(environment.iterdir()):
            file.add(path, path.name)
    os.replace(aside, archive)


def _is_made_of(place: Path, made_of: str) -> bool:
    told = place / _MADE_OF
    return told.is_file() and told.read_text(encoding="utf-8") == made_of


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _run(command: Sequence[str], seconds: float) -> None:
    """Run a command to its end. Raises `NotInstalled` if it fails or takes too long."""
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command)} took over {seconds:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_TOLD_CHARACTERS:]
        raise NotInstalled(f"{' '.join(command)} failed: {said}")
