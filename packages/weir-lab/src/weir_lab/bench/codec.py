"""What the batch costs: packing, opening, checking and splitting, in one process, best of many."""

from __future__ import annotations

import timeit
from collections.abc import Callable

import msgspec

from weir.model.batch import Batch
from weir.model.batch_builder import encode

_GROUP = 1 << 16
_ROUNDS = 30
_ROUND_SECONDS = 0.02


class Settings(msgspec.Struct, frozen=True):
    """A batch of `messages` values of `size` bytes, all of one width or of mixed ones."""

    messages: int = 1_000
    size: int = 100
    mixed: bool = False

    def values(self) -> list[bytes]:
        """Return the values; mixed ones are `size` bytes on average."""
        spread = self.size // 2 if self.mixed else 0
        return [
            bytes([i % 251]) * (self.size - spread + (i * 7 % (2 * spread) if spread else 0))
            for i in range(self.messages)
        ]


class Result(msgspec.Struct, frozen=True):
    """Nanoseconds a message, microseconds a batch. Encoding and decoding include the hash."""

    batch_bytes: int
    encode_ns: float
    decode_ns: float
    open_us: float
    check_us: float


def measure(settings: Settings) -> Result:
    """Time each step; raises `ValueError` if what comes out is not what went in."""
    values = settings.values()
    batch = bytes(encode(values, group=_GROUP))
    if Batch(batch).check(_GROUP).values() != values:
        raise ValueError("the codec returned other values")

    def per_message(step: Callable[[], object]) -> float:
        return _best(step) / settings.messages * 1e9

    return Result(
        len(batch),
        per_message(lambda: encode(values, group=_GROUP)),
        per_message(lambda: Batch(batch).check(_GROUP).values()),
        _best(lambda: Batch(batch)) * 1e6,
        _best(lambda: Batch(batch).check(_GROUP)) * 1e6,
    )


def _best(step: Callable[[], object]) -> float:
    """Return the seconds of the fastest round: the one that others disturbed least."""
    timer = timeit.Timer(step)
    number = max(1, int(_ROUND_SECONDS / max(timer.timeit(3) / 3, 1e-9)))
    return min(timer.repeat(_ROUNDS, number)) / number
