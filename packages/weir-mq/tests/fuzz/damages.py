"""Damages to texts and streams, as of somebody who tries what comes through."""

from __future__ import annotations

import random


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Return bytes with one to three damages: flips, cuts, insertions, repetitions."""
    found = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at, kind = dice.randrange(len(found) + 1), dice.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = dice.randbytes(dice.randrange(1, 8))
        elif kind == 3:
            found += found[at : at + dice.randrange(64)]
        else:
            found[at : at + 1] = dice.choice((b",", b"=", b"r=", b"p=", b"\0", b"\xff"))
    return bytes(found)
