"""SCRAM-SHA-256: the vectors of RFC 7677, another implementation, and everybody who lies."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode

import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.credentials import client_key, derive_key, false_verifier, make_verifier
from weir.access.scram import (
    MESSAGE_BYTES_MAX,
    ScramClient,
    ScramProof,
    ScramServer,
    check_channel,
    encode_nonce,
    parse_first,
)
from weir.errors import NotAuthenticated, RemoteProtocolError

C_NONCE, S_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
VERIFIER = make_verifier("pencil", SALT, 4_096)
KEY = derive_key("pencil", SALT, 4_096)


def server(first: bytes = FIRST, nonce: str = S_NONCE) -> ScramServer:
    return ScramServer(parse_first(first), VERIFIER, nonce)


def proof(challenge: bytes = CHALLENGE) -> ScramProof:
    return ScramProof(ScramClient("user", C_NONCE).challenged(challenge), KEY)


def test_both_sides_speak_as_the_rfc_does() -> None:
    client = ScramClient("user", C_NONCE)
    assert client.first == FIRST
    broker = server()
    assert parse_first(FIRST).user == "user"
    assert broker.challenge == CHALLENGE
    answer = ScramProof(client.challenged(CHALLENGE), KEY)
    assert answer.final == FINAL
    assert broker.finish(FINAL) == SIGNED
    answer.check(SIGNED)


@settings(max_examples=25, deadline=None)
@given(
    st.from_regex(r"[A-Za-z0-9._=,-]{1,40}", fullmatch=True),
    st.from_regex(r"[\x21-\x7e]{1,40}", fullmatch=True),
)
def test_another_implementation_agrees_on_both_sides(user: str, password: str) -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    info = mechanism.make_auth_info(password, 4_096, SALT)
    theirs = mechanism.make_server(lambda _: info)
    client = ScramClient(user, encode_nonce(bytes(18)))
    theirs.set_client_first(client.first.decode())
    asked = client.challenged(theirs.get_server_first().encode())
    answer = ScramProof(asked, derive_key(password, asked.salt, asked.iterations))
    theirs.set_client_final(answer.final.decode())
    answer.check(theirs.get_server_final().encode())

    them = scramp.ScramClient(["SCRAM-SHA-256"], user, password)
    first = parse_first(them.get_client_first().encode())
    assert first.user == user
    ours = ScramServer(first, make_verifier(password, SALT, 4_096), encode_nonce(b"n" * 18))
    them.set_server_first(ours.challenge.decode())
    them.set_server_final(ours.finish(them.get_client_final().encode()).decode())


def test_a_wrong_password_is_refused_as_an_unknown_user_is() -> None:
    wrong = ScramProof(
        ScramClient("user", C_NONCE).challenged(CHALLENGE), derive_key("pencil2", SALT, 4_096)
    )
    unknown = ScramServer(parse_first(FIRST), false_verifier(b"s" * 32, "user", 4_096), S_NONCE)
    asked = ScramClient("user", C_NONCE).challenged(unknown.challenge)
    answer = ScramProof(asked, derive_key("pencil", asked.salt, asked.iterations))
    texts = set()
    for broker, final in ((server(), wrong.final), (unknown, answer.final)):
        with pytest.raises(NotAuthenticated) as refused:
            broker.finish(final)
        texts.add(str(refused.value))
    assert len(texts) == 1


def test_a_stored_key_alone_does_not_log_in() -> None:
    """Who has stolen a verifier sends it in place of the key that it is the hash of."""
    stolen = bytes(b64decode(FINAL.split(b"p=")[1]))
    for claimed in (
        VERIFIER.stored_key,
        VERIFIER.server_key,
        bytes(32),
        stolen[:-1],
        b"",
        stolen * 2,
    ):
        with pytest.raises(NotAuthenticated):
            server().finish(FINAL.split(b"p=")[0] + b"p=" + b64encode(claimed))


def test_a_challenge_takes_one_guess() -> None:
    broker = server()
    with pytest.raises(NotAuthenticated):
        broker.finish(FINAL.replace(b"dHz", b"dHy"))
    with pytest.raises(NotAuthenticated):
        broker.finish(FINAL)
    broker = server()
    broker.finish(FINAL)
    with pytest.raises(NotAuthenticated):
        broker.finish(FINAL)


def test_a_proof_is_not_worth_anything_in_another_login() -> None:
    other = server(nonce="another nonce of the broker".replace(" ", "-"))
    with pytest.raises(NotAuthenticated):
        other.finish(FINAL)
    # Neither with the nonce that this login has, which the proof is not about.
    nonce = re.match(b"r=([^,]*)", other.challenge)
    assert nonce is not None
    other = server(nonce="another-nonce-of-the-broker")
    with pytest.raises(NotAuthenticated):
        other.finish(b"c=biws,r=" + nonce[1] + b",p=" + FINAL.split(b"p=")[1])


def test_a_proof_that_names_another_nonce_is_refused() -> None:
    """The words are signed by who knows the key; the nonce must still be this login's."""
    asked = ScramClient("user", C_NONCE).challenged(
        CHALLENGE.replace(S_NONCE.encode(), b"a-nonce-of-somebody-else")
    )
    with pytest.raises(NotAuthenticated):
        server().finish(ScramProof(asked, KEY).final)


def test_a_proof_about_another_channel_is_refused() -> None:
    bound = b64encode(b"y,,")
    with pytest.raises(NotAuthenticated):
        server().finish(FINAL.replace(b"biws", bound))


@pytest.mark.parametrize(
    "unproven",
    [
        b"c=eSws," + CHALLENGE.split(b",")[0],  # another channel
        b"c=biws,r=" + C_NONCE.encode() + b"a-nonce-of-another-login",
        b"c=biws,r=" + C_NONCE.encode(),
    ],
)
def test_what_is_proved_must_also_be_said_of_this_login(unproven: bytes) -> None:
    """Whoever has the password signs what it likes; the words must still be those of this login."""
    words = FIRST[3:] + b"," + CHALLENGE + b"," + unproven
    mine = client_key(KEY)
    signature = hmac.digest(hashlib.sha256(mine).digest(), words, "sha256")
    proof = bytes(a ^ b for a, b in zip(mine, signature, strict=True))
    with pytest.raises(NotAuthenticated):
        server().finish(unproven + b",p=" + b64encode(proof))


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n,,", b"y,,n=user,r=" + C_NONCE.encode(),
        b"p=tls-unique,,n=user,r=abcdefghijklmnopq",
        b"n,a=admin,n=user,r=" + C_NONCE.encode(), b"n,,m=x,n=user,r=" + C_NONCE.encode(),
        b"n,,n=user,r=", b"n,,n=user,r=short", b"n,,n=user,r=" + b"x" * 129,
        b"n,,n=user,r=abcdefghijklmno\x7fpq", b"n,,n=,r=" + C_NONCE.encode(),
        b"n,,n=us=er,r=" + C_NONCE.encode(), b"n,,n=us\x00er,r=" + C_NONCE.encode(),
        b"n,,r=" + C_NONCE.encode() + b",n=user", FIRST + b",x=1", b"\xff" * 20,
        b"n,,n=" + b"u" * MESSAGE_BYTES_MAX + b",r=" + C_NONCE.encode(),
    ],
)  # fmt: skip
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_first(first)


@pytest.mark.parametrize(
    "challenge",
    [
        b"", CHALLENGE + b",m=1", b"e=other-error",
        b"r=" + C_NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # reflected
        b"r=" + C_NONCE.encode() + b"123,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        CHALLENGE.replace(b"r=rO", b"r=rP"), CHALLENGE.replace(b"i=4096", b"i=4095"),
        CHALLENGE.replace(b"i=4096", b"i=1"), CHALLENGE.replace(b"i=4096", b"i=0"),
        CHALLENGE.replace(b"i=4096", b"i=1000001"), CHALLENGE.replace(b"i=4096", b"i=" + b"9" * 10),
        CHALLENGE.replace(b"i=4096", b"i=" + b"9" * 600), CHALLENGE.replace(b"i=4096", b"i=-4096"),
        CHALLENGE.replace(b"i=4096", b"i=4_096"), CHALLENGE.replace(
            b"i=4096", "i=\uff14\uff10\uff19\uff16".encode(),
        ),
        CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""),
        CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"W22Za"),
        CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"W22ZaJ0SNY7soEsUEjb6"),
    ],
)  # fmt: skip
def test_a_client_does_not_answer_such_a_challenge(challenge: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        proof(challenge)


@pytest.mark.parametrize(
    "final",
    [b"", b"v=", b"v=AAAA", b"v=" + b64encode(bytes(32)), SIGNED + b",x=1", SIGNED[:-4], b"v=%%%%"],
)
def test_a_broker_that_does_not_prove_itself_is_left(final: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        proof().check(final)


def test_a_refusal_of_the_broker_is_one() -> None:
    with pytest.raises(NotAuthenticated):
        proof().check(b"e=invalid-proof")


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_garbage_is_refused_at_every_step(garbage: bytes) -> None:
    for step in (parse_first, ScramClient("user", C_NONCE).challenged, server().finish):
        with pytest.raises((RemoteProtocolError, NotAuthenticated)):
            step(garbage)


@settings(max_examples=200)
@given(st.integers(0, len(FINAL) - 1), st.integers(1, 255))
def test_no_changed_byte_of_a_proof_logs_in(at: int, change: int) -> None:
    changed = bytearray(FINAL)
    changed[at] ^= change
    try:
        said = server().finish(bytes(changed))
    except (NotAuthenticated, RemoteProtocolError):
        return
    # Base64 leaves bits of the last character over: it is still the same proof.
    assert said == SIGNED
    assert b64decode(bytes(changed).split(b"p=")[1]) == b64decode(FINAL.split(b"p=")[1])


def test_a_kept_key_is_used_where_it_fits_alone() -> None:
    asked = ScramClient("user", C_NONCE).challenged(CHALLENGE)
    assert asked.fits(KEY)
    for other in (derive_key("pencil", SALT, 4_097), derive_key("pencil", bytes(16), 4_096)):
        assert not asked.fits(other)
        with pytest.raises(ValueError, match="another salt"):
            ScramProof(asked, other)


def test_a_password_needs_tls_beyond_the_machine() -> None:
    check_channel(is_encrypted=True, is_loopback=False)
    check_channel(is_encrypted=False, is_loopback=True)
    with pytest.raises(NotAuthenticated, match="TLS"):
        check_channel(is_encrypted=False, is_loopback=False)


def test_a_nonce_has_its_bytes() -> None:
    assert len(encode_nonce(bytes(18))) == 24
    with pytest.raises(ValueError, match="18"):
        encode_nonce(b"")
    with pytest.raises(RemoteProtocolError):
        ScramServer(parse_first(FIRST), VERIFIER, "")
