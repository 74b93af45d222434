"""The release before this one, built from the repository's history: its wheels, installed aside."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weir.errors import WeirError

#: The last commit of format level 2, and the level that it supports.
BEFORE = "af8008c7d93407e538a89e27d2f0945fee970a94"
BEFORE_LEVEL = 2
_PACKAGES = ("weir-raft", "weir-mq")
_BUILD_S = 300.0


class NoRelease(WeirError):
    """The release before cannot be built here; the message says why."""


class Release:
    """Packages of a release in a folder of their own, which processes import before all others."""

    def __init__(self, site: Path) -> None:
        """Take the folder that holds the packages."""
        self.site = site

    @property
    def words(self) -> list[str]:
        """What a command begins with that is to run this release."""
        return ["env", f"PYTHONPATH={self.site}"]

    def run(self, code: str, *words: str, seconds: float = 60.0) -> str:
        """Run Python code with this release; return what it prints. Raises `WeirError`."""
        return _run([*self.words, sys.executable, "-P", "-c", code, *words], seconds=seconds)


def release_before(root: Path) -> Release:
    """Return the release before, from the folder `build` of the repository at `root`, where it is
    built at the first call. Raises `NoRelease` if the history there has no such commit.
    """
    site = root / "build" / "releases" / BEFORE[:12]
    if not site.is_dir():
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=site.parent) as name:
            built = _build(root, Path(name))
            try:
                built.rename(site)
            except OSError:  # another process has built it meanwhile
                if not site.is_dir():
                    raise
    return Release(site)


def _build(root: Path, folder: Path) -> Path:
    """Build the wheels in a folder, and install them into another one there, which is returned."""
    git = ["git", "-C", str(root)]
    try:
        _run([*git, "cat-file", "-e", f"{BEFORE}^{{commit}}"])
    except (WeirError, FileNotFoundError):
        raise NoRelease(
            f"the repository's history has no commit {BEFORE[:12]}, of which the release before is "
            "built: use a full clone"
        ) from None
    packed = subprocess.run(
        [*git, "archive", BEFORE, *(f"packages/{name}" for name in _PACKAGES)],
        capture_output=True, check=True, timeout=_BUILD_S,
    ).stdout  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder / "source", filter="data")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    sources = [str(folder / "source" / "packages" / name) for name in _PACKAGES]
    wheels, site = folder / "wheels", folder / "site"
    # The backend that builds this release builds that one, too: nothing is downloaded.
    _run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), *sources])
    built = [str(one) for one in sorted(wheels.glob("*.whl"))]
    _run([*pip, "install", "--no-deps", "--no-index", "--target", str(site), *built])
    return site


def _run(words: Sequence[str], *, seconds: float = _BUILD_S) -> str:
    hidden = {"PYTHONPATH"}
    done = subprocess.run(
        words,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if done.returncode:
        raise WeirError(f"{' '.join(words[:6])}: {done.stderr.strip()[-2000:]}")
    return done.stdout
