"""Python processes that end with the one that started them, whatever becomes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import weir

#: Where the package that runs now lies: children import this one, installed or not.
_IMPORT_ROOT = str(Path(weir.__file__).parents[1])


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of weir with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with the weir that runs now first on the import path."""
    path = os.environ.get("PYTHONPATH")
    roots = [_IMPORT_ROOT, *([path] if path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
