"""Whether the code that a figure was measured on is today's: a hash over what its processes ran.

The hash covers the syntax of each module that the processes loaded (without comments, docstrings
and layout), the files that the command names, the command with its settings, the versions of the
packages that were loaded, and Python's. The commit is not part of it.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import weir
import weir_raft
from weir_lab import sim

#: What a list of loaded code calls a package that does not belong to the repository.
PACKAGE = "="
#: Those of the repository: what they hold is in the list by its files.
DISTRIBUTIONS = ("weir-lab", "weir-mq", "weir-raft", "weir-toc")


def loaded_code(root: Path, told: Iterable[str], words: Iterable[str] = ()) -> list[str]:
    """Return what processes loaded: files relative to `root`, and packages as `=NAME`, sorted.

    `told`: lines that `weir_lab.proofs.loaded_modules` wrote; `words`: those of the command.
    """
    found = set(_files_of(root, words))
    owners = _distributions()
    for line in filter(None, set(told)):
        if line.startswith("/"):
            found |= _inside(root, Path(line))
        elif file := _source(root, line):
            found.add(file)
        elif (top := line.partition(".")[0]) not in sys.stdlib_module_names:
            found |= {PACKAGE + name for name in owners.get(top, ())}
    found -= {PACKAGE + name for name in DISTRIBUTIONS}
    return sorted(found)


def code_hash(root: Path, code: Sequence[str], *settings: str) -> str:
    """Return the hash of loaded code as it is now; what is gone counts as another code."""
    total = hashlib.sha256()
    for part in (platform.python_version(), *settings):
        total.update(part.encode() + b"\0")
    for name in code:
        if name.startswith(PACKAGE):
            text = _version(name.removeprefix(PACKAGE))
        else:
            text = _file_hash(root / name)
        total.update(f"{name}\0{text}\0".encode())
    return total.hexdigest()[:16]


@cache
def worlds_hash() -> str:
    """Return the hash of what simulated worlds play and are judged by, as it is now: comments and
    layout do not count.
    """
    total = hashlib.sha256()
    for package in (weir_raft, weir, sim):
        root = Path(str(package.__file__)).parent
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
        total.update(code_hash(root, names).encode())
    return total.hexdigest()[:16]


def syntax(text: str) -> str:
    """Return a module's syntax without comments, docstrings and layout.

    Raises `SyntaxError` for what is no Python.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            del node.body[0]
    return ast.dump(tree)


def _file_hash(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "gone"
    return _content_hash(path, status.st_mtime_ns, status.st_size)


@cache
def _content_hash(path: Path, _modified_ns: int, _size: int) -> str:
    data = path.read_bytes()
    if path.suffix == ".py":
        data = syntax(data.decode()).encode()
    return hashlib.sha256(data).hexdigest()


def _files_of(root: Path, words: Iterable[str]) -> Iterator[str]:
    """Yield the files that a command names, and what pytest loads beside its tests."""
    for word in words:
        for file in _inside(root, root / word):
            yield file
            if "tests" in Path(file).parts:
                for folder in Path(file).parents:
                    if (root / folder / "conftest.py").is_file():
                        yield (folder / "conftest.py").as_posix()


def _inside(root: Path, path: Path) -> set[str]:
    """Return a file's name relative to the root, if it is the repository's."""
    if path.is_relative_to(root) and path.is_file():
        name = path.relative_to(root)
        if not name.parts[0].startswith("."):  # an environment's
            return {name.as_posix()}
    return set()


def _source(root: Path, module: str) -> str | None:
    """Return the file of a module of the repository, or of a rig of its tests."""
    place = module.replace(".", "/")
    folder = "tests" if place.startswith("rigs/") else "src"
    for base in (*(f"packages/{name}/{folder}/" for name in DISTRIBUTIONS), ""):
        for name in (f"{base}{place}/__init__.py", f"{base}{place}.py"):
            if (root / name).is_file():
                return name
    return None


@cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in metadata.packages_distributions().items()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "gone"
