"""Python processes that run this very weir."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import weir

#: Where the package that runs now lies: children import this one, installed or not.
_IMPORT_ROOT = str(Path(weir.__file__).parents[1])


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of weir with this interpreter."""
    # -P: what lies in the folder that we happen to be in is not imported.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, in which the weir that runs now can be imported."""
    if _IMPORT_ROOT in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    roots = [_IMPORT_ROOT, *([path] if path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
