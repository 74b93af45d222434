"""The names of all modules that processes load, written down while they load them.

`make proof` gives each measurement a file in WEIR_LOADED_MODULES. Every process that imports weir
appends the names of its modules to it, its children too. A name is written when its import begins,
so a process that is killed with -9 has told all that it loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

VARIABLE = "WEIR_LOADED_MODULES"


class ImportRecorder(MetaPathFinder):
    """Finds no module, but appends the name of each that is looked for to a file, a line each."""

    def __init__(self, path: str) -> None:
        """`path`: the file; it is opened for each name, so that a fork needs no care."""
        self._path = path
        self._seen: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Write the name down once, and leave the search to the other finders."""
        if fullname not in self._seen:
            self.write([fullname])
        return None

    def write(self, names: Sequence[str]) -> None:
        """Append names; a file that cannot be written changes nothing for the process."""
        self._seen.update(names)
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, "".join(f"{name}\n" for name in names).encode())
            finally:
                os.close(file)


def record_imports(path: str) -> None:
    """Append what is loaded now to a file, and from here on each module that is imported.

    Modules are given by name, and those that do not belong to Python by their file as well.
    """
    recorder = ImportRecorder(path)
    sys.meta_path.insert(0, recorder)
    loaded = [name for name in sys.modules if name != "__main__"]
    files = [
        os.path.abspath(file)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in sys.stdlib_module_names or name == "__main__"
        if (file := getattr(module, "__file__", None))
    ]
    recorder.write([*loaded, *files])
