"""What the checkers of handlers and of parcels find, in histories written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.testing.simulator.world import MS
from weir_lab.sim.checkers.applications import Delivered, EffectOnce
from weir_lab.sim.history import History, Record
from weir_lab.sim.observations import Ledger, Parcel, Parcels

VALUES = (b"a", b"b", b"c")


def handled() -> tuple[History, Ledger]:
    """Message 0 has its effect, 1 is rejected, and a handler of 2 failed as often as it may."""
    ledger = Ledger(attempts=3, drained=True)
    ledger.effects[0, 0] = 1
    ledger.hopeless = {(0, 1)}
    ledger.failed.update({(0, 1): 1, (0, 2): 3})
    ledger.dead = {(0, 1): False, (0, 2): True}
    history = History(ledger=ledger)
    history.drained[0] = [
        Record(offset, (value,), 100 + offset, ()) for offset, value in enumerate(VALUES)
    ]
    return history, ledger


def an_effect_comes_twice(ledger: Ledger) -> None:
    ledger.effects[0, 0] = 2


def an_effect_of_what_is_rejected(ledger: Ledger) -> None:
    ledger.effects[0, 1] = 1


def a_dead_letter_without_a_topic(ledger: Ledger) -> None:
    ledger.attempts = 0


def a_dead_letter_that_nobody_tried(ledger: Ledger) -> None:
    del ledger.failed[0, 1]


def an_effect_left_out(ledger: Ledger) -> None:
    del ledger.effects[0, 0]


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (an_effect_comes_twice, "has its effect 2 times"),
        (an_effect_of_what_is_rejected, "has an effect, and handlers rejected it"),
        (a_dead_letter_without_a_topic, "there is no topic for such"),
        (a_dead_letter_that_nobody_tried, "no handler of it failed"),
        (an_effect_left_out, "has no effect, and the cluster has done it"),
    ],
)
def test_a_broken_effect_is_found(plant: Callable[[Ledger], None], words: str) -> None:
    history, ledger = handled()
    assert not list(EffectOnce().check(history))
    plant(ledger)
    assert any(words in text for text in EffectOnce().check(history))


def test_what_is_not_done_yet_may_have_no_effect() -> None:
    history, ledger = handled()
    an_effect_left_out(ledger)
    ledger.drained = False
    assert not list(EffectOnce().check(history))
    assert not list(EffectOnce().check(History())), "no handlers, no ledger"


def parcel() -> tuple[History, Parcel]:
    """One that was confirmed and delivered, in a world that is done."""
    one = Parcel("a#1", b"value", 50 * MS, large=True, place=(0, 3))
    one.places, one.arrived, one.told = {(0, 3)}, 60 * MS, True
    return History(parcels=Parcels({"a#1": one}, drained=True)), one


def it_is_another(one: Parcel) -> None:
    one.wrong = "4 bytes"


def it_is_there_twice(one: Parcel) -> None:
    one.places.add((0, 9))


def it_is_not_where_its_receipt_says(one: Parcel) -> None:
    one.place = (0, 4)


def it_is_early(one: Parcel) -> None:
    one.arrived = 40 * MS


def it_never_came(one: Parcel) -> None:
    one.places, one.arrived = set(), -1


def it_is_done_untold(one: Parcel) -> None:
    one.told = False


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (it_is_done_untold, "is done, and nobody who got it said so"),
        (it_is_another, "is not the value it was: 4 bytes"),
        (it_is_there_twice, "is there more than once"),
        (it_is_not_where_its_receipt_says, "is there more than once"),
        (it_is_early, "was delivered 10 ms before it was due"),
        (it_never_came, "was confirmed at (0, 3), and never delivered"),
    ],
)
def test_a_parcel_gone_wrong_is_found(plant: Callable[[Parcel], None], words: str) -> None:
    history, one = parcel()
    assert not list(Delivered().check(history))
    plant(one)
    assert any(words in text for text in Delivered().check(history))


@pytest.mark.parametrize("excuse", ["skewed", "values_expire"])
def test_wrong_clocks_and_values_that_expire_excuse_what_they_can(excuse: str) -> None:
    history, one = parcel()
    (it_is_early if excuse == "skewed" else it_never_came)(one)
    setattr(history, excuse, True)
    assert not list(Delivered().check(history))
