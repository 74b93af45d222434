"""Python processes that run this very weir."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

#: Where the packages that run now lie: children import these, installed or not.
_IMPORT_ROOTS = [
    str(Path(spec.origin).parents[1])
    for name in ("weir", "weir_raft")
    if (spec := find_spec(name)) and spec.origin
]


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of weir with this interpreter."""
    # -P: what lies in the folder that we happen to be in is not imported.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, in which the weir that runs now can be imported."""
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if installed.issuperset(_IMPORT_ROOTS):
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    roots = [*dict.fromkeys(_IMPORT_ROOTS), *([path] if path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
