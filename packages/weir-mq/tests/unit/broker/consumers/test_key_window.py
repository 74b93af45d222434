"""The window of a keyed cluster against a plain list, and what its answers cost."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest

from weir.broker.consumers import key_window
from weir.broker.consumers.key_window import KeyWindow
from weir.broker.state.ranges import Ranges

Run = tuple[int, int]


class Twin:
    """What a window is to say, message by message."""

    def __init__(self) -> None:
        self.keys: dict[int, int] = {}
        self.out: set[int] = set()

    def fit(self, barred: Sequence[int] = ()) -> list[int]:
        """Those whose key is not out, but what is barred and what follows it of its key."""
        locked = {self.keys[offset] for offset in self.out}
        found = []
        for offset, key in sorted(self.keys.items()):
            if key not in locked and offset in barred:
                locked.add(key)
            elif key not in locked:
                found.append(offset)
        return found


def runs_of(offsets: Sequence[int]) -> list[Run]:
    return list(Ranges([(offset, offset + 1) for offset in offsets]))


@pytest.mark.parametrize("seed", range(12))
def test_a_window_agrees_with_a_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order: messages that are added with gaps, taken, freed, done, gone."""
    monkeypatch.setattr(key_window, "_BLOCK_MAX", (1, 2, 7, 1_024)[seed % 4])
    monkeypatch.setattr(key_window, "_READY_MAX", (0, 8_192)[seed % 2])
    dice = random.Random(seed)
    window, twin, offset = KeyWindow(50), Twin(), 0
    keys_of = dice.choice(((1, 2, 3), (1,), range(30)))
    for _ in range(2_000):
        roll = dice.random()
        known = sorted(twin.keys)
        if roll < 0.3 and window.room:
            offset += dice.choice((0, 0, 0, 1, 5))
            some = [
                dice.choice((*keys_of, -1 - offset - n))
                for n in range(dice.randint(1, min(window.room, 9)))
            ]
            window.add_all(offset, some)
            locked = {twin.keys[one] for one in twin.out}
            twin.keys.update(enumerate(some, offset))
            held = [
                one
                for one, key in enumerate(some, offset)
                if (key in locked or not twin.out) and dice.random() < 0.2
            ]
            window.hold(runs_of(held))
            twin.out.update(held)
            offset += len(some)
        elif roll < 0.6:
            barred = dice.sample(known, min(len(known), dice.choice((0, 0, 1, 3))))
            fit = twin.fit(barred)
            assert window.first(Ranges(runs_of(barred))) == min(fit, default=None)
            assert window.first() == min(twin.fit(), default=None)
            behind, most = dice.randrange(offset + 2), dice.randint(1, 12)
            free = [one for one in twin.fit() if one < behind]
            assert window.takeable(behind, most) == len(free[:most])
            keys = {twin.keys[one] for one in twin.fit()}
            assert window.keys_ready(64) == min(len(keys), 64)
            runs = window.take(behind, most, Ranges(runs_of(barred)))
            taken = [one for run in runs for one in range(*run)]
            assert taken == [one for one in fit if one < behind][:most]
            assert runs == runs_of(taken)
            twin.out.update(taken)
        elif roll < 0.65 and known:
            start = dice.choice(known)
            window.drop_below(start)
            for one in [one for one in known if one < start]:
                del twin.keys[one]
                twin.out.discard(one)
        elif roll < 0.85 and known:
            first = dice.choice(known)
            some = [*range(first, first + dice.choice((1, 1, 4, 30)))]
            window.done(runs_of(some))
            for one in some:
                twin.keys.pop(one, None)
                twin.out.discard(one)
        elif twin.out:
            some = dice.sample(sorted(twin.out), min(dice.choice((1, 3, 20)), len(twin.out)))
            window.free(runs_of(some))
            twin.out.difference_update(some)
        assert len(window) == len(twin.keys)
        assert window.idle == len(twin.keys) - len(twin.out)


def test_keys_of_which_nothing_is_left_are_forgotten() -> None:
    """Each message may have a key of its own; what is known of it ends with it."""
    window, offset, memory = KeyWindow(3_000), 0, list[int]()
    tracemalloc.start()
    try:
        for _ in range(80):
            window.add_all(offset, range(offset, offset + 1_000))
            window.done(window.take(offset + 1_000, 900))
            window.drop_below(offset)
            offset += 1_000
            memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(memory[40:]) <= 1.2 * max(memory[:40])


class Looked(int):
    """A key that counts how often a set looks for such keys."""

    times = 0

    def __hash__(self) -> int:
        Looked.times += 1
        return int(self)


def test_one_key_that_is_out_does_not_have_all_behind_it_looked_at_again() -> None:
    """A consumer keeps one key for long: whoever asks next is not told by a look at each."""
    window = KeyWindow()
    for first in range(0, 60_000, 1_000):
        window.add_all(first, [*[Looked(7)] * 999, Looked(-first - 1)])
    assert window.take(1, 1) == [(0, 1)]
    for _ in range(60):
        for run in window.take(60_000, 1):
            window.done([run])
    assert window.first() is None
    before = Looked.times
    assert window.first() is None
    assert Looked.times == before
    window.done([(0, 1)])
    assert window.first() == 1
    assert Looked.times <= before + 10


def test_a_key_of_which_nothing_is_left_is_looked_for_once() -> None:
    """It was known to be there while an earlier one was out."""
    window = KeyWindow()
    window.add_all(0, [Looked(5), Looked(7), Looked(5)])
    window.add_all(3, [Looked(7)] * 500)
    assert window.take(1, 1) == [(0, 1)]
    assert window.take(600, 1) == [(1, 2)]
    assert window.first() is None
    window.done([(0, 1)])
    window.done(window.take(600, 1))
    assert window.first() is None
    before = Looked.times
    assert window.first() is None
    assert Looked.times == before
