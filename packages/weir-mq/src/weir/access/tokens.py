"""Tokens that name a user until a time: JWT (RFC 7519) with EdDSA or ES256, and JWKS (RFC 7517).

A broker fetches nothing: the keys of an issuer lie in a file on its machine. A key belongs to one
issuer, and names its algorithm; headers that carry or point to keys are not looked at.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from weir.access.signatures import Algorithm, PrivateKey, PublicKey
from weir.errors import BadRequest, NotAuthenticated

#: The mechanism of a login by a token, which is its only message.
BEARER = "BEARER"
#: All checked before anything is decoded.
TOKEN_BYTES_MAX = 8_192
JWKS_BYTES_MAX = 256 * 1024
KEYS_MAX = 64
NAME_CHARACTERS_MAX = 256
AUDIENCES_MAX = 16
#: So much may clocks of an issuer and of a broker differ.
LEEWAY_SECONDS = 30
#: What one token may be limited to.
LIMITED_ROLES_MAX = 64
LIMITED_TOPICS_MAX = 128
#: Of a token that `weir token issue` makes.
LIFE_SECONDS_MAX = 365 * 24 * 3600

_TOKEN = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")
_SECONDS_MAX = 1 << 40
#: One text for everything that is wrong with a token but its time: an attacker who guesses learns
#: nothing.
_REFUSED = "the token is not valid here: get a new one"


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class TokenLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the claim `weir` of a token says: it gives only these of the user's roles, and rights to
    these topics alone, by full names; None: to all that the user may. Tokens that a set issued are
    good for the user of this `number` alone, until its password is set after access `version`.
    """

    roles: Annotated[tuple[str, ...], Meta(max_length=LIMITED_ROLES_MAX)] | None = None
    topics: Annotated[tuple[str, ...], Meta(max_length=LIMITED_TOPICS_MAX)] | None = None
    number: int = 0
    version: int = 0


#: Of a token that says nothing of it.
UNLIMITED = TokenLimits()


class SessionToken(NamedTuple):
    """The token that a session logged in with: its issuer, the key that signed it, its id, and its
    limits.
    """

    issuer: str
    key: str
    id: str
    limits: TokenLimits


class _Payload(msgspec.Struct):
    iss: str
    sub: str
    aud: str | list[str]
    exp: float
    nbf: float = 0.0
    iat: float = 0.0
    jti: str = ""
    weir: TokenLimits = UNLIMITED


class Claims(msgspec.Struct, frozen=True):
    """What a token says that was verified; times are seconds since 1970.

    `token_id` is the same in a token and in those that renew it, or empty.
    """

    issuer: str
    subject: str
    audiences: tuple[str, ...]
    expires: float
    not_before: float = 0.0
    issued: float = 0.0
    token_id: str = ""
    limits: TokenLimits = UNLIMITED
    #: Which key verified it; empty before.
    key_id: str = ""


class Issuer(msgspec.Struct, frozen=True):
    """An issuer whose tokens are accepted: its name (`iss`), the audience (`aud`), its keys."""

    name: str
    audience: str
    keys: Sequence[PublicKey]

    def verify(self, token: bytes, now_seconds: float) -> Claims:
        """Return what a token says. Raises `NotAuthenticated` unless one of this issuer's keys
        signed it for this audience, and it is valid at `now_seconds` since 1970; its text tells
        one that has expired, or is not valid yet, from any other. Raises `MissingLibrary`.
        """
        if len(token) > TOKEN_BYTES_MAX or not (parts := _TOKEN.fullmatch(token)):
            raise NotAuthenticated(_REFUSED)
        header_part, payload_part, signature_part = (part.decode() for part in parts.groups())
        header = _read(header_part, _Header)
        key = self._key(header)
        signature = _decoded(signature_part)
        if not key.verifies(signature, token[: parts.end(2)]):
            raise NotAuthenticated(_REFUSED)
        payload = _read(payload_part, _Payload)
        audiences = (payload.aud,) if isinstance(payload.aud, str) else tuple(payload.aud)
        named = payload.sub and len(payload.sub) <= NAME_CHARACTERS_MAX
        if payload.iss != self.name or not named or len(payload.jti) > NAME_CHARACTERS_MAX:
            raise NotAuthenticated(_REFUSED)
        if len(audiences) > AUDIENCES_MAX or self.audience not in audiences:
            raise NotAuthenticated(_REFUSED)
        _check_times(payload, now_seconds)
        return Claims(
            payload.iss, payload.sub, audiences, payload.exp, payload.nbf, payload.iat, payload.jti,
            payload.weir, key.key_id,
        )  # fmt: skip

    def _key(self, header: _Header) -> PublicKey:
        """Return the key that must have signed; the header says which, the key says how."""
        found = [key for key in self.keys if header.kid in (None, key.key_id)]
        if len(found) != 1 or header.crit is not msgspec.UNSET or found[0].algorithm != header.alg:
            raise NotAuthenticated(_REFUSED)
        return found[0]


def verify_token(token: bytes, issuers: Mapping[str, Issuer], now_seconds: float) -> Claims:
    """Return what a token of one of the issuers, by name, says. Raises as `Issuer.verify`.

    The issuer is read before the token is verified, only to choose the keys to verify it with.
    """
    if len(token) > TOKEN_BYTES_MAX or not (parts := _TOKEN.fullmatch(token)):
        raise NotAuthenticated(_REFUSED)
    claimed = _read(parts[2].decode(), _Payload).iss
    if (issuer := issuers.get(claimed)) is None:
        raise NotAuthenticated(_REFUSED)
    return issuer.verify(token, now_seconds)


def issue_token(key: PrivateKey, key_id: str, claims: Claims) -> bytes:
    """Return a token that says `claims`, signed.

    Raises `BadRequest` where they are too long, or valid for more than a year after `issued`.
    """
    if not 0 < claims.expires - claims.issued <= LIFE_SECONDS_MAX:
        raise BadRequest("a token lives a year at most, and ends after it begins", LIFE_SECONDS_MAX)
    if not claims.subject or not claims.audiences or len(claims.audiences) > AUDIENCES_MAX:
        raise BadRequest(f"a token names a user, and 1 to {AUDIENCES_MAX} audiences")
    audiences: str | tuple[str, ...] = claims.audiences
    if len(claims.audiences) == 1:
        audiences = claims.audiences[0]
    payload: dict[str, Any] = {
        "iss": claims.issuer, "sub": claims.subject, "aud": audiences, "exp": claims.expires,
        "iat": claims.issued,
    }  # fmt: skip
    if claims.not_before:
        payload["nbf"] = claims.not_before
    if claims.token_id:
        payload["jti"] = claims.token_id
    if claims.limits != UNLIMITED:
        payload["weir"] = claims.limits
    header = {"alg": key.algorithm.value, "kid": key_id, "typ": "JWT"}
    signed = b".".join(_encoded(msgspec.json.encode(part)) for part in (header, payload))
    token = signed + b"." + _encoded(key.sign(signed))
    if len(token) > TOKEN_BYTES_MAX:
        raise BadRequest(f"the token has more than {TOKEN_BYTES_MAX:,} bytes", TOKEN_BYTES_MAX)
    return token


def read_unverified(token: bytes) -> tuple[float, str] | None:
    """Return when a token says that it ends, in seconds since 1970, and its id, without verifying
    anything: its holder can know when to renew it. None if it is no token.
    """
    if len(token) > TOKEN_BYTES_MAX or not (parts := _TOKEN.fullmatch(token)):
        return None
    try:
        payload = _read(parts[2].decode(), _Payload)
    except NotAuthenticated:
        return None
    return (payload.exp, payload.jti) if 0 < payload.exp <= _SECONDS_MAX else None


def read_jwks(data: bytes) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS file that can verify here: Ed25519 and P-256, for signatures.

    Other keys are passed by. Raises `BadRequest` if none is left, a key is none, two have one id,
    or the file holds a private key, which belongs to the issuer alone. Raises `MissingLibrary`.
    """
    if len(data) > JWKS_BYTES_MAX:
        raise BadRequest(f"a JWKS file has at most {JWKS_BYTES_MAX:,} bytes", JWKS_BYTES_MAX)
    try:
        rows = msgspec.json.decode(data, type=_Jwks).keys
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadRequest('a JWKS file is JSON: {"keys": [{"kty": ..., "kid": ...}]}') from None
    if len(rows) > KEYS_MAX:
        raise BadRequest(f"a JWKS file has at most {KEYS_MAX} keys", KEYS_MAX)
    found: dict[str, PublicKey] = {}
    for row in rows:
        if row.d is not msgspec.UNSET or row.k is not msgspec.UNSET:
            raise BadRequest(
                "the JWKS file holds a secret key: give the broker the public keys alone, and "
                "replace that key"
            )
        if (key := _key_of(row)) is None:
            continue
        if key.key_id in found:
            raise BadRequest(f"the JWKS file has two keys with the id {key.key_id!r}")
        key.check()
        found[key.key_id] = key
    if not found:
        raise BadRequest("the JWKS file has no key that verifies EdDSA (Ed25519) or ES256 (P-256)")
    return tuple(found.values())


def write_jwks(keys: Sequence[PublicKey]) -> bytes:
    """Return a JWKS file with the keys."""
    rows = []
    for one in keys:
        row = {"kid": one.key_id, "alg": one.algorithm.value, "use": "sig"}
        if one.algorithm is Algorithm.EDDSA:
            row |= {"kty": "OKP", "crv": "Ed25519", "x": _encoded(one.key).decode()}
        else:
            x, y = one.key[1:33], one.key[33:]
            row |= {"kty": "EC", "crv": "P-256"}
            row |= {"x": _encoded(x).decode(), "y": _encoded(y).decode()}
        rows.append(row)
    return msgspec.json.format(msgspec.json.encode({"keys": rows}))


class _Jwk(msgspec.Struct):
    kty: str
    kid: str = ""
    alg: str = ""
    use: str = "sig"
    crv: str = ""
    x: str = ""
    y: str = ""
    d: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    k: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Jwks(msgspec.Struct):
    keys: list[_Jwk]


def _key_of(row: _Jwk) -> PublicKey | None:
    curves = {("OKP", "Ed25519"): Algorithm.EDDSA, ("EC", "P-256"): Algorithm.ES256}
    algorithm = curves.get((row.kty, row.crv))
    if algorithm is None or row.use != "sig" or row.alg not in ("", algorithm):
        return None
    if not row.kid or len(row.kid) > NAME_CHARACTERS_MAX // 2:
        raise BadRequest(f"each key of a JWKS file has a `kid` of 1 to {NAME_CHARACTERS_MAX // 2}")
    numbers = [row.x] if algorithm is Algorithm.EDDSA else [row.x, row.y]
    try:
        parts = [_decoded(number) for number in numbers]
    except NotAuthenticated:
        parts = []
    if [len(part) for part in parts] != [32] * len(numbers):
        raise BadRequest(f"key {row.kid!r} of the JWKS file has not 32 bytes in base64url")
    head = b"" if algorithm is Algorithm.EDDSA else b"\x04"
    return PublicKey(row.kid, algorithm, head + b"".join(parts))


def _check_times(payload: _Payload, now_seconds: float) -> None:
    if not 0 < payload.exp <= _SECONDS_MAX or not 0 <= payload.nbf <= _SECONDS_MAX:
        raise NotAuthenticated(_REFUSED)
    if now_seconds >= payload.exp + LEEWAY_SECONDS:
        raise NotAuthenticated("the token has expired: get a new one")
    if now_seconds < payload.nbf - LEEWAY_SECONDS:
        raise NotAuthenticated("the token is not valid yet: compare this machine's clock")


def _read(part: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(_decoded(part), type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise NotAuthenticated(_REFUSED) from None


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: str) -> bytes:
    """Decode base64url without padding; only the one spelling that encoding gives is taken."""
    try:
        if not _BASE64.fullmatch(text):
            raise ValueError
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise NotAuthenticated(_REFUSED) from None
    if _encoded(data).decode() != text:
        raise NotAuthenticated(_REFUSED)
    return data
