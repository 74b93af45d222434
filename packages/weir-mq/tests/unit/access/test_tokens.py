"""Tokens and the keys that sign them: vectors of the RFCs, and tokens that nobody issued."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.signatures import Algorithm, PrivateKey, PublicKey
from weir.access.tokens import (
    AUDIENCES_MAX,
    JWKS_BYTES_MAX,
    KEYS_MAX,
    LEEWAY_SECONDS,
    LIFE_SECONDS_MAX,
    TOKEN_BYTES_MAX,
    Claims,
    Issuer,
    issue_token,
    read_jwks,
    verify_token,
    write_jwks,
)
from weir.errors import BadRequest, MissingLibrary, NotAuthenticated

NOW = 1_800_000_000.0
CLAIMS = Claims("weir", "shop/alice", ("set-1",), NOW + 600, issued=NOW, token_id="t1")


def pem_of(
    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


EDDSA = PrivateKey(pem_of(ed25519.Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)))
ES256 = PrivateKey(pem_of(ec.derive_private_key(7, ec.SECP256R1())))
KEYS = {"ed": EDDSA, "es": ES256}
ISSUER = Issuer("weir", "set-1", [key.public(name) for name, key in KEYS.items()])


def encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def token_of(header: object, payload: object, sign: Callable[[bytes], bytes] = EDDSA.sign) -> bytes:
    parts = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in (header, payload)]
    signed = b".".join(map(encoded, parts))
    return signed + b"." + encoded(sign(signed))


HEADER = {"alg": "EdDSA", "kid": "ed"}
PAYLOAD = {"iss": "weir", "sub": "alice", "aud": "set-1", "exp": NOW + 600}


@pytest.mark.parametrize(
    ("key", "signed", "signature"),
    [
        (
            PublicKey(
                "rfc8037", Algorithm.EDDSA, decoded("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
            ),
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
        (
            PublicKey(
                "rfc7515",
                Algorithm.ES256,
                b"\x04"
                + decoded("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU")
                + decoded("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
            ),
            "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt"
            "cGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ],
)
def test_keys_verify_what_the_rfcs_signed(key: PublicKey, signed: str, signature: str) -> None:
    good = decoded(signature)
    assert key.verifies(good, signed.encode())
    assert not key.verifies(good, signed.encode() + b"A")
    for at in (0, 31, 32, 63):
        bad = bytearray(good)
        bad[at] ^= 1
        assert not key.verifies(bytes(bad), signed.encode())
    for size in (0, 63, 65):
        assert not key.verifies((good + good)[:size], signed.encode())
    assert not key.verifies(bytes(64), signed.encode())


@pytest.mark.parametrize("name", KEYS)
def test_what_is_issued_is_verified(name: str) -> None:
    token = issue_token(KEYS[name], name, CLAIMS)
    verified = msgspec.structs.replace(CLAIMS, key_id=name)
    assert ISSUER.verify(token, NOW) == verified
    assert verify_token(token, {"weir": ISSUER}, NOW) == verified


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_is_taken(name: str, at: int, change: int) -> None:
    token = bytearray(issue_token(KEYS[name], name, CLAIMS))
    token[at % len(token)] ^= change
    with pytest.raises(NotAuthenticated):
        ISSUER.verify(bytes(token), NOW)


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.from_regex(rb"[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*){1,3}"))
def test_garbage_is_refused(token: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        verify_token(token, {"weir": ISSUER}, NOW)


def hmac_by(key: bytes) -> Callable[[bytes], bytes]:
    return lambda data: hmac.digest(key, data, hashlib.sha256)


PUBLIC = {key.key_id: key.key for key in ISSUER.keys}
DEEP = b'{"alg":"EdDSA","kid":"ed","x":' + b"[" * 2_000 + b"]" * 2_000 + b"}"


@pytest.mark.parametrize(
    "token",
    [
        b"", b".", b"..", b"...",
        token_of({"alg": "none"}, PAYLOAD, lambda _: b""),
        token_of({"alg": "none", "kid": "ed"}, PAYLOAD),
        token_of({"alg": "None", "kid": "ed"}, PAYLOAD, lambda _: bytes(64)),
        token_of({"alg": "HS256", "kid": "ed"}, PAYLOAD, hmac_by(PUBLIC["ed"])),
        token_of({"alg": "EdDSA", "kid": "ed"}, PAYLOAD, hmac_by(PUBLIC["ed"])),
        token_of({"alg": "HS512", "kid": "es"}, PAYLOAD, lambda d: hmac_by(PUBLIC["es"])(d) * 2),
        token_of({"alg": "ES256", "kid": "ed"}, PAYLOAD),
        token_of({"alg": "EdDSA", "kid": "es"}, PAYLOAD),
        token_of({"alg": "EdDSA", "kid": "es"}, PAYLOAD, ES256.sign),
        token_of({"alg": "EdDSA", "kid": "nobody"}, PAYLOAD),
        token_of({"alg": "EdDSA", "kid": ""}, PAYLOAD),
        token_of({"alg": "EdDSA"}, PAYLOAD),  # there are two keys
        token_of({"kid": "ed"}, PAYLOAD),
        token_of({**HEADER, "crit": ["b64"], "b64": False}, PAYLOAD),
        token_of({**HEADER, "crit": []}, PAYLOAD),
        token_of({"alg": ["EdDSA"], "kid": "ed"}, PAYLOAD),
        token_of(DEEP[:20], PAYLOAD), token_of(b"\xff\xfe", PAYLOAD), token_of([], PAYLOAD),
        token_of(HEADER, []), token_of(HEADER, "x"), token_of(HEADER, b"{"),
        token_of(HEADER, b'{"a":' * 800 + b"1" + b"}" * 800),
        token_of(HEADER, {**PAYLOAD, "iss": "other"}), token_of(HEADER, {**PAYLOAD, "sub": ""}),
        token_of(HEADER, {**PAYLOAD, "sub": "a" * 257}), token_of(HEADER, {**PAYLOAD, "sub": 7}),
        token_of(HEADER, {**PAYLOAD, "jti": "a" * 257}),
        token_of(HEADER, {**PAYLOAD, "aud": "set-2"}), token_of(HEADER, {**PAYLOAD, "aud": []}),
        token_of(HEADER, {**PAYLOAD, "aud": ["set-1"] * (AUDIENCES_MAX + 1)}),
        token_of(HEADER, {**PAYLOAD, "aud": "set-10"}),
        token_of(HEADER, {k: v for k, v in PAYLOAD.items() if k != "aud"}),
        token_of(HEADER, {k: v for k, v in PAYLOAD.items() if k != "exp"}),
        token_of(HEADER, {k: v for k, v in PAYLOAD.items() if k != "sub"}),
        token_of(HEADER, {k: v for k, v in PAYLOAD.items() if k != "iss"}),
        token_of(HEADER, {**PAYLOAD, "exp": True}), token_of(HEADER, {**PAYLOAD, "exp": "never"}),
        token_of(HEADER, {**PAYLOAD, "exp": 0}), token_of(HEADER, {**PAYLOAD, "exp": -1}),
        token_of(HEADER, {**PAYLOAD, "exp": 1e300}), token_of(HEADER, {**PAYLOAD, "nbf": -1}),
        token_of(HEADER, b'{"iss":"weir","sub":"alice","aud":"set-1","exp":1e999}'),
        token_of(HEADER, b'{"iss":"weir","sub":"alice","aud":"set-1","exp":NaN}'),
        token_of(HEADER, {**PAYLOAD, "exp": NOW - LEEWAY_SECONDS}),
        token_of(HEADER, {**PAYLOAD, "exp": NOW - 3_600}),
        token_of(HEADER, {**PAYLOAD, "nbf": NOW + 3_600}),
        token_of(HEADER, {**PAYLOAD, "x": "a" * TOKEN_BYTES_MAX}),
        token_of(HEADER, PAYLOAD) + b"=", token_of(HEADER, PAYLOAD) + b".",
        b" " + token_of(HEADER, PAYLOAD),
        token_of(HEADER, PAYLOAD) + b"\n", token_of(HEADER, PAYLOAD).replace(b".", b"..", 1),
    ],
)  # fmt: skip
def test_hostile_tokens_are_refused(token: bytes) -> None:
    for check in (ISSUER.verify, lambda t, now: verify_token(t, {"weir": ISSUER}, now)):
        with pytest.raises(NotAuthenticated):
            check(token, NOW)


def test_the_tokens_that_hostile_ones_are_made_from_are_taken() -> None:
    """Else those would be refused for a reason that nobody meant."""
    changes: list[dict[str, object]] = [
        {}, {"aud": ["x", "set-1"]}, {"more": {"a": [1]}}, {"nbf": NOW + LEEWAY_SECONDS},
        {"exp": int(NOW) - 29},
    ]  # fmt: skip
    for change in changes:
        assert ISSUER.verify(token_of(HEADER, {**PAYLOAD, **change}), NOW).subject == "alice"
    assert ISSUER.verify(token_of({**HEADER, "typ": "at+jwt", "jku": "http://x/"}, PAYLOAD), NOW)
    lone = Issuer("weir", "set-1", ISSUER.keys[:1])
    assert lone.verify(token_of({"alg": "EdDSA"}, PAYLOAD), NOW)


def test_a_large_nested_token_is_refused_before_it_is_read() -> None:
    with pytest.raises(NotAuthenticated):
        ISSUER.verify(token_of(DEEP, PAYLOAD), NOW)
    with pytest.raises(NotAuthenticated):
        ISSUER.verify(token_of(DEEP * 3, PAYLOAD), NOW)


def test_a_key_of_one_issuer_signs_nothing_for_another() -> None:
    other = Issuer("oidc", "set-1", [ES256.public("ed")])
    both = {"weir": ISSUER, "oidc": other}
    forged = token_of({"alg": "ES256", "kid": "ed"}, PAYLOAD, ES256.sign)
    for check in (lambda: verify_token(forged, both, NOW), lambda: other.verify(forged, NOW)):
        with pytest.raises(NotAuthenticated):
            check()
    with pytest.raises(NotAuthenticated):
        verify_token(issue_token(EDDSA, "ed", CLAIMS), {"oidc": other}, NOW)


def test_time_is_told_and_nothing_else() -> None:
    texts: dict[str, str] = {}
    for name, payload, sign in [
        ("late", {**PAYLOAD, "exp": NOW - 3_600}, EDDSA.sign),
        ("early", {**PAYLOAD, "nbf": NOW + 3_600}, EDDSA.sign),
        ("unsigned", {**PAYLOAD, "exp": NOW - 3_600}, lambda _: bytes(64)),
        ("foreign", {**PAYLOAD, "aud": "set-2"}, EDDSA.sign),
        ("nobody", {**PAYLOAD, "sub": ""}, EDDSA.sign),
    ]:
        with pytest.raises(NotAuthenticated) as refused:
            ISSUER.verify(token_of(HEADER, payload, sign), NOW)
        texts[name] = str(refused.value)
    assert "expired" in texts["late"]
    assert "clock" in texts["early"]
    assert texts["unsigned"] == texts["foreign"] == texts["nobody"]


@pytest.mark.parametrize(
    "claims",
    [
        Claims("weir", "", ("set-1",), NOW + 1, issued=NOW),
        Claims("weir", "alice", (), NOW + 1, issued=NOW),
        Claims("weir", "alice", ("a",) * (AUDIENCES_MAX + 1), NOW + 1, issued=NOW),
        Claims("weir", "alice", ("set-1",), NOW, issued=NOW),
        Claims("weir", "alice", ("set-1",), NOW + LIFE_SECONDS_MAX + 1, issued=NOW),
        Claims("weir", "a" * TOKEN_BYTES_MAX, ("set-1",), NOW + 1, issued=NOW),
    ],
)
def test_a_token_that_nobody_would_take_is_not_issued(claims: Claims) -> None:
    with pytest.raises(BadRequest):
        issue_token(EDDSA, "ed", claims)


def test_keys_go_through_a_file() -> None:
    assert read_jwks(write_jwks(ISSUER.keys)) == tuple(ISSUER.keys)


ED_ROW = {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encoded(PUBLIC["ed"]).decode()}
ES_ROW = {
    "kty": "EC",
    "crv": "P-256",
    "kid": "es",
    "x": encoded(PUBLIC["es"][1:33]).decode(),
    "y": encoded(PUBLIC["es"][33:]).decode(),
}
RSA_ROW = {"kty": "RSA", "kid": "rsa", "n": "AQAB", "e": "AQAB"}


def test_other_keys_of_an_issuer_are_passed_by() -> None:
    rows = [RSA_ROW, ED_ROW, {**ES_ROW, "use": "enc"}, {**ES_ROW, "alg": "ECDH-ES"},
            {"kty": "EC", "crv": "P-384", "kid": "x", "x": "AA", "y": "AA"}]  # fmt: skip
    (found,) = read_jwks(json.dumps({"keys": rows, "more": 1}).encode())
    assert found.key_id == "ed"


@pytest.mark.parametrize(
    "rows",
    [
        [], [RSA_ROW], [{**ED_ROW, "d": "AA"}], [{"kty": "oct", "kid": "k", "k": "AA"}, ED_ROW],
        [ED_ROW, ED_ROW], [{**ED_ROW, "kid": ""}], [{**ED_ROW, "kid": "k" * 129}],
        [{**ED_ROW, "x": ""}], [{**ED_ROW, "x": ED_ROW["x"] + "="}], [{**ED_ROW, "x": "AA"}],
        [{**ES_ROW, "y": ""}], [{**ES_ROW, "y": ES_ROW["x"]}],  # no point of the curve
        [{**ED_ROW, "kid": f"k{n}"} for n in range(KEYS_MAX + 1)], ["x"], [{**ED_ROW, "kid": 1}],
    ],
)  # fmt: skip
def test_a_file_of_keys_that_cannot_be_trusted_is_refused(rows: list[object]) -> None:
    with pytest.raises(BadRequest):
        read_jwks(json.dumps({"keys": rows}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"keys": 1}',
        b'{"keys": ' + b"[" * 100_000,
        b" " * (JWKS_BYTES_MAX + 1),
    ],
)
def test_a_file_that_holds_no_keys_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read_jwks(data)


@pytest.mark.parametrize(
    "pem",
    [
        b"", b"secret", b"x" * 5_000, pem_of(ec.generate_private_key(ec.SECP384R1())),
        pem_of(rsa.generate_private_key(65_537, 1_024)),
        ec.derive_private_key(7, ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        ),
    ],
)  # fmt: skip
def test_other_private_keys_are_refused(pem: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        PrivateKey(pem)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibrary, match=r"weir-mq\[access\]"):
        ISSUER.verify(token_of(HEADER, PAYLOAD, lambda _: bytes(64)), NOW)
