"""Bugs that are planted by source text: a piece that must stand exactly once is replaced.

A module's text is compiled with the piece replaced, and the functions of the live module get the
new code. A renamed room cannot quietly disarm such a bug: where the piece does not stand, or stands
twice, planting it is refused.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from weir.errors import WeirError

T = TypeVar("T")


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
    after = _numbered(_codes(compile(source.replace(old, new), file, "exec", dont_inherit=True)))
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
