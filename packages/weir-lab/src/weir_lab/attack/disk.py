"""A stolen data folder: what is found in its bytes, and what a node that starts on it allows."""

from __future__ import annotations

import shutil
import tempfile
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import msgspec

from weir.errors import WeirError
from weir.testing.nodes import NodeFailed, running_node
from weir_lab.attack import strangers
from weir_lab.attack.targets import Target


def steal(target: Target) -> list[str]:
    """Copy the folder of a node that runs, and return what it gives away."""
    with tempfile.TemporaryDirectory(prefix="weir-stolen-") as name:
        copy = Path(name) / "data"
        shutil.copytree(target.folder, copy, ignore_dangling_symlinks=True)
        achieved = [f"find {what}" for what, mark in target.marks.items() if _is_in(mark, copy)]
        return achieved + _served(target, copy)


def _is_in(mark: bytes, folder: Path) -> bool:
    """Return whether a secret is in a folder: as it is, in hex, or in base64."""
    forms = (mark, mark.hex().encode(), b64encode(mark))
    return any(
        form in file.read_bytes()
        for file in folder.rglob("*") if file.is_file() for form in forms
    )  # fmt: skip


def _served(target: Target, folder: Path) -> list[str]:
    """Start a node on the copy, without its key file and certificates; attack that."""
    for lock in folder.rglob("lock"):
        lock.unlink()
    try:
        with running_node(folder, shards=1) as node:
            stolen = msgspec.structs.replace(
                target, host=node.host, port=node.port, folder=str(folder), bundle=""
            )
            achieved = []
            for name in ("list topics", "make an administrator", "open the set"):
                if strangers.ATTACKS[name](stolen):
                    achieved.append(name)
            for what, mark in target.marks.items():
                with suppress(WeirError, UnicodeError, OSError), stolen.connect("root", mark.hex()):
                    achieved.append(f"log in by {what}")
            return achieved
    except NodeFailed as e:
        print("XX", e)
        return []  # without its key file it does not serve at all
