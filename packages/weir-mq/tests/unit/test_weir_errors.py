"""Numbers of refusals are on the wire: fixed for ever."""

from __future__ import annotations

import pickle

import pytest

from weir import errors
from weir.errors import BY_CODE, Refused, WeirError, refusal

NUMBERS = {
    "Refused": 1, "BadRequest": 2, "Unauthorized": 3, "UnknownTopic": 4, "TopicExists": 5,
    "BadName": 6, "TooLarge": 7, "BadChecksum": 8, "SequenceGap": 9, "SequenceReused": 10,
    "Fenced": 11, "ProducerExpired": 12, "UnknownProducer": 13, "StampTooFar": 14,
    "Overloaded": 15, "Revoked": 55, "NotLeader": 16, "Unavailable": 17, "OffsetOutOfRange": 18,
    "UnknownCluster": 19, "StaleGrant": 20, "NoHello": 21, "UnknownOpcode": 22,
    "WrongSystem": 23, "Halted": 24,
}  # fmt: skip
RETRYABLE = {"Overloaded", "Revoked", "NotLeader", "Unavailable", "BadChecksum"}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
REFUSALS = [kind for kind in KINDS if issubclass(kind, Refused)]


def test_numbers_never_change_and_are_never_shared() -> None:
    assert {name: getattr(errors, name).code for name in NUMBERS} == NUMBERS
    assert len(REFUSALS) == len(BY_CODE)  # two kinds of one number would hide each other
    assert all(BY_CODE[kind.code] is kind for kind in REFUSALS)


def test_what_may_be_tried_again_is_said_by_the_type() -> None:
    assert {kind.__name__ for kind in REFUSALS if kind.retryable} == RETRYABLE


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_a_refusal_crosses_the_wire(kind: type[Refused]) -> None:
    error = refusal(kind.code, "do that", 41)
    assert type(error) is kind
    assert (str(error), error.detail) == ("do that", 41)


@pytest.mark.parametrize("code", [0, -1, 25, 65_535])
def test_a_number_of_a_later_release_stays_a_refusal(code: int) -> None:
    error = refusal(code, "do that", 41)
    assert type(error) is Refused
    assert not error.retryable


def test_refusals_cross_processes_with_their_detail() -> None:
    error = pickle.loads(pickle.dumps(errors.SequenceGap("send from 41", 41)))
    assert (type(error), str(error), error.detail) == (errors.SequenceGap, "send from 41", 41)


def test_everything_weir_raises_is_a_weir_error() -> None:
    others = {k for k in KINDS if issubclass(k, Exception) and not issubclass(k, WeirError)}
    assert others == {errors.Reject}  # this one is for applications to raise
