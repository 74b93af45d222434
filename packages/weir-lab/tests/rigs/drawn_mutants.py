"""Which mutants and worlds `make test` plays: the bytes of weir's modules draw them.

So every change plays others. `make test-slow` plays the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

import weir
import weir_lab
import weir_raft
import weir_toc

Test = TypeVar("Test", bound=Callable[..., None])


class Named(Protocol):
    """A mutant, of the broker or of the transport of packets."""

    @property
    def name(self) -> str: ...


@cache
def code_digest() -> bytes:
    """Return a hash of all that weir is, comments too: to parse it all would take five seconds."""
    code = hashlib.sha256()
    for package in (weir_raft, weir_toc, weir, weir_lab):
        for file in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            code.update(file.read_bytes())
    return code.digest()


def cases(mutants: Sequence[Named], count: int) -> list[Any]:
    """Return a case for each mutant: `count` of them are drawn, and the others are slow."""
    chosen = drawn([mutant.name for mutant in mutants], count)
    return [
        pytest.param(one, id=one.name, marks=[] if one.name in chosen else [pytest.mark.slow])
        for one in mutants
    ]


def seeds_of(count: int, *failed: Any) -> list[Any]:
    """Return a case for each seed that once failed: `count` are drawn, and the others are slow.

    Each is another run with every change of the code, as good as any other, and `make test` plays
    hundreds that nobody chose. A seed with its shape is a tuple.
    """
    return some_of(count, *failed)


def some_of(count: int, *values: Any) -> list[Any]:
    """Return a case for each of these: `count` are drawn, and the others are slow.

    For cases that show one thing in several ways. One that has several arguments is a tuple.
    """
    chosen = drawn([repr(one) for one in values], count)
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=[] if repr(one) in chosen else [pytest.mark.slow],
        )
        for one in values
    ]


def one_in(count: int) -> Callable[[Test], Test]:
    """Let `make test` play a test once in `count` changes of the code, and else leave it out.

    For what others prove as well: a sweep of one kind of worlds, for hundreds of drawn worlds are
    of all kinds; a world that once broke a promise, for it is another run with every change; that
    a seed replays, which is shown for one node and for three in any case; and what `make proof`
    measures by the same command.
    """

    def mark(test: Test) -> Test:
        first = hashlib.sha256(code_digest() + test.__name__.encode()).digest()[0]
        return pytest.mark.slow(test) if first % count else test

    return mark


def drawn(names: Sequence[str], count: int) -> list[str]:
    """Return `count` of these names, as the bytes of weir's modules draw them."""

    def rank(name: str) -> bytes:
        return hashlib.sha256(code_digest() + name.encode()).digest()

    return sorted(names, key=rank)[:count]
