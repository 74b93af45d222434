"""Compression: what comes back, how little it believes, and what it says without a library."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest

from weir.codec import LZ4, ZSTD, deflate, inflate
from weir.errors import BadBatch, MissingLibrary

DATA = b"the same again and again, " * 400
BOTH = pytest.mark.parametrize("kind", [LZ4, ZSTD])


@BOTH
@pytest.mark.parametrize("level", [None, 1, 12])
@pytest.mark.parametrize("data", [DATA, b"x"])
def test_what_goes_in_comes_out(kind: int, level: int | None, data: bytes) -> None:
    packed = deflate(kind, data, level)
    assert inflate(kind, memoryview(packed), len(data)) == data
    assert len(packed) < len(data) or data == b"x"


@BOTH
@pytest.mark.parametrize("size", [1, len(DATA) - 1, len(DATA) + 1])
def test_another_size_is_refused(kind: int, size: int) -> None:
    with pytest.raises(BadBatch):
        inflate(kind, deflate(kind, DATA), size)


@BOTH
@pytest.mark.parametrize("data", [b"", b"\0", b"garbage" * 9, bytes(99)])
def test_garbage_is_a_bad_batch(kind: int, data: bytes) -> None:
    with pytest.raises(BadBatch):
        inflate(kind, data, 4_000)


@BOTH
def test_a_bomb_takes_no_more_memory_than_was_announced(kind: int) -> None:
    bomb = deflate(kind, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch):
            inflate(kind, bomb, 1_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("kind", "module"), [(LZ4, "lz4.block"), (ZSTD, "zstandard")])
def test_without_its_library_the_extra_is_named(kind: int, module: str, monkeypatch: Any) -> None:
    packed = deflate(kind, DATA)
    monkeypatch.setitem(sys.modules, module, None)
    for step in (lambda: deflate(kind, DATA), lambda: inflate(kind, packed, len(DATA))):
        with pytest.raises(MissingLibrary, match=r"pip install 'weir-mq\[compress\]'"):
            step()
