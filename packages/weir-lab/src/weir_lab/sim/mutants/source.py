"""Bugs that are planted by source text: a piece that must stand exactly once is replaced.

A module's text is compiled with the piece replaced, and the functions of the live module get the
new code. A renamed room cannot quietly disarm such a bug: where the piece does not stand, or stands
twice, planting it is refused. Before the statement that differs a call of `TOUCHED` is put in: a
bug whose line no world reaches says nothing of the worlds.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from weir.errors import WeirError

T = TypeVar("T")

#: What a planted line calls before it does anything, by this name among its module's.
TOUCHED = "_weir_touched"


class PlantingRefused(WeirError):
    """A piece of source cannot be replaced; the message says why."""


def replaced(module: ModuleType, old: str, new: str) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions of a module whose code changes with one piece of its text, and to what.

    Raises `PlantingRefused` if the piece does not stand there exactly once, or changes nothing but
    what a module does once, as it is imported.
    """
    source = inspect.getsource(module)
    found = source.count(old)
    if found != 1:
        raise PlantingRefused(
            f"{old!r} stands {found} times in {module.__name__}, and must stand once: correct it"
        )
    file = inspect.getsourcefile(module) or "?"
    before = _numbered(_codes(compile(source, file, "exec", dont_inherit=True)))
    planted = _noticed(source, old, new)
    after = _numbered(_codes(compile(planted, file, "exec", dont_inherit=True)))
    live = sorted(_functions(module), key=lambda one: one[1].__code__.co_firstlineno)
    functions = _numbered(live)
    changed = [
        (functions[key], code)
        for key, code in after.items()
        if key in functions and key in before and _differs(before[key], code)
    ]
    if not changed:
        raise PlantingRefused(f"{old!r} in {module.__name__} is in no function: choose another")
    return changed


def _noticed(source: str, old: str, new: str) -> ast.Module:
    """Return the syntax of a module with a piece replaced, which tells of each time it is run."""
    at = source.index(old)
    same = _alike(old, new)
    rest = _alike(old[same:][::-1], new[same:][::-1])
    text = source.replace(old, new)
    if same + rest >= len(new):  # of what is only left out, the line before it tells
        same = len(text[: at + same].rstrip()) - at - 1
    first = text.count("\n", 0, at + same) + 1
    last = text.count("\n", 0, max(at + same, at + len(new) - rest - 1)) + 1
    tree = ast.parse(text)
    room = _innermost(tree, first, last)
    if room is not None:
        block, number = room
        told = ast.parse(f"{TOUCHED}()").body[0]
        for node in ast.walk(told):
            ast.copy_location(node, block[number])
        block.insert(number, told)
    return tree


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    differing = (at for at, (mine, its) in enumerate(pairs) if mine != its)
    return next(differing, min(len(one), len(other)))


def _innermost(tree: ast.Module, first: int, last: int) -> tuple[list[ast.stmt], int] | None:
    """Return the block, and the place in it, of the first statement of a function that begins on
    these lines, or of the smallest that has them.
    """
    found = list[tuple[tuple[int, int, int], list[ast.stmt], int]]()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and first <= node.lineno <= last:
                found.append(((0, node.lineno, 0), node.body, 0))
            for _, block in ast.iter_fields(node):
                for number, one in enumerate(block if isinstance(block, list) else ()):
                    if not isinstance(one, ast.stmt) or one.end_lineno is None:
                        continue
                    lines = one.end_lineno - one.lineno
                    if first <= one.lineno <= last:
                        found.append(((0, one.lineno, -lines), block, number))
                    elif one.lineno <= last and first <= one.end_lineno:
                        found.append(((1, lines, one.lineno), block, number))
    if not found:
        return None
    _, block, number = min(found, key=lambda one: one[0])
    return block, number


def _numbered(named: Iterable[tuple[str, T]]) -> dict[tuple[str, int], T]:
    """Tell those apart that have one name, such as the getter and the setter of a property."""
    seen: Counter[str] = Counter()
    found = {}
    for name, one in named:
        found[name, seen[name]] = one
        seen[name] += 1
    return found


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Return the code of each function of a module or class by its qualified name.

    What is defined in a function goes with that function.
    """
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & inspect.CO_NEWLOCALS:
                yield part.co_qualname, part
            else:  # the body of a class
                yield from _codes(part)


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for value in vars(module).values():
        yield from _functions_in(value, module.__name__)


def _functions_in(value: Any, module: str) -> Iterator[tuple[str, FunctionType]]:
    value = inspect.unwrap(getattr(value, "__func__", value))
    if isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _functions_in(part, module)
    elif isinstance(value, FunctionType):
        if value.__module__ == module:
            yield value.__qualname__, value
    elif isinstance(value, type) and value.__module__ == module:
        for inner in vars(value).values():
            yield from _functions_in(inner, module)


def _differs(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do something else; where they stand in a file does not count."""
    if (one.co_code, one.co_names, one.co_varnames) != (
        other.co_code,
        other.co_names,
        other.co_varnames,
    ):
        return True
    if len(one.co_consts) != len(other.co_consts):
        return True
    for mine, its in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, CodeType) and isinstance(its, CodeType):
            if _differs(mine, its):
                return True
        elif type(mine) is not type(its) or mine != its:
            return True
    return False
