"""A folder that is gone afterwards, whatever happens, and one for what the user keeps."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.errors import WeirError

_REMOVE_SECONDS = 5.0
_AGAIN_SECONDS = 0.1


class NotRemoved(WeirError):
    """A file of the demo is left behind."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder; remove it afterwards. Raises `NotRemoved` if it will not go."""
    folder = Path(tempfile.mkdtemp(prefix="weir-demo-"))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it. Raises `NotRemoved` if that fails for too long."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        # The helpers of a Spark that was killed end a moment later, and may still write.
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            raise NotRemoved(f"{folder} cannot be removed: another process uses it")
        time.sleep(_AGAIN_SECONDS)


def check(out: Path) -> None:
    """Raise `OSError` if `keep` could write nothing there: it is told before the work is done."""
    there = next(place for place in (out.resolve(), *out.resolve().parents) if place.exists())
    number = errno.EACCES if there.is_dir() else errno.ENOTDIR
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise OSError(number, os.strerror(number), str(there))


def keep(made: Path, out: Path | None) -> Path:
    """Move a folder into `out`, by default a new temporary one, over nothing; return its place."""
    home = out.resolve() if out is not None else Path(tempfile.mkdtemp(prefix="weir-delays-"))
    home.mkdir(parents=True, exist_ok=True)
    place, again = home / made.name, 1
    while place.exists():
        again += 1
        place = home / f"{made.name}-{again}"
    return Path(shutil.move(made, place))
