"""Verifiers of passwords: made as RFC 7677 says, refused where they cannot be."""

from __future__ import annotations

import msgspec
import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.credentials import (
    ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    PASSWORD_BYTES_MAX,
    ScramVerifier,
    choose_verifier,
    derive_key,
    false_verifier,
    make_verifier,
    prepare_password,
)
from weir.errors import BadRequest

SALT = bytes(range(16))


@pytest.mark.parametrize("password", ["pencil", "I\u00adX", "Ⅸ", "\u00aa", "pass\u00a0word", "é"])
def test_a_verifier_is_the_one_that_others_make(password: str) -> None:
    made = make_verifier(password, SALT, 4_096)
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    salt, stored, server, count = mechanism.make_auth_info(password, 4_096, SALT)
    assert made == ScramVerifier(count, salt, stored, server)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("I\u00adX", "IX"), ("Ⅸ", "IX"), ("ª", "a"), ("a\u00a0b", "a b"), ("e\u0301", "é"),
     ("ﷺ", "صلى الله عليه وسلم"), ("user", "user"), ("USER", "USER")],
)  # fmt: skip
def test_a_password_is_the_same_however_it_is_typed(typed: str, kept: str) -> None:
    assert prepare_password(typed).decode() == kept


@pytest.mark.parametrize(
    "password",
    ["", "\u00ad", "a\x00b", "a\x07", "\u0627\u0031", "\u0627a\u0627",
     chr(0xD800), "\ue000", "\u0221",
     "a\u200ea", "\ufffd", "a" * (PASSWORD_BYTES_MAX + 1), "é" * PASSWORD_BYTES_MAX],
)  # fmt: skip
def test_what_can_be_no_password_is_refused(password: str) -> None:
    with pytest.raises(BadRequest):
        prepare_password(password)


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_a_prepared_password_is_prepared(password: str) -> None:
    try:
        prepared = prepare_password(password).decode()
    except BadRequest:
        return
    # The one rule that is not stable under NFKC is that of unassigned characters.
    assert prepare_password(prepared).decode() == prepared


@pytest.mark.parametrize(
    ("salt", "iterations"),
    [(b"", 4_096), (bytes(15), 4_096), (bytes(65), 4_096), (SALT, 0), (SALT, ITERATIONS_MIN - 1),
     (SALT, ITERATIONS_MAX + 1)],
)  # fmt: skip
def test_weak_or_endless_verifiers_are_not_made(salt: bytes, iterations: int) -> None:
    with pytest.raises(BadRequest):
        make_verifier("pencil", salt, iterations)


def test_a_verifier_is_stored_in_these_bytes() -> None:
    made = ScramVerifier(120_000, SALT, bytes(32), b"\xff" * 32)
    stored = msgspec.msgpack.encode(made)
    golden = "94ce0001d4c0c410" + SALT.hex() + "c420" + "00" * 32 + "c420" + "ff" * 32
    assert stored.hex() == golden
    assert msgspec.msgpack.decode(stored, type=ScramVerifier) == made


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_stored_verifier_of_other_sizes_is_refused(at: int) -> None:
    fields: list[object] = [120_000, SALT, bytes(32), bytes(32)]
    fields[at] = bytes(3)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=ScramVerifier)


def test_a_user_that_does_not_exist_has_a_salt_that_stays() -> None:
    secret = b"s" * 32
    false = false_verifier(secret, "nobody")
    assert false == false_verifier(secret, "nobody")
    assert false.iterations == ITERATIONS
    assert false_verifier(secret, "nobody else").salt != false.salt
    assert false_verifier(b"t" * 32, "nobody").salt != false.salt
    assert len({false.salt, false.stored_key[:16], false.server_key[:16]}) == 3
    assert choose_verifier(None, secret, "nobody") == false
    true = make_verifier("pencil", SALT, 4_096)
    assert choose_verifier(true, secret, "somebody") == true


def test_keys_are_not_shown() -> None:
    salted = derive_key("pencil", SALT, 4_096)
    verifier = make_verifier("pencil", SALT, 4_096)
    for text in (repr(salted), repr(verifier), f"{verifier}"):
        assert "\\x" not in text
        assert "b'" not in text
