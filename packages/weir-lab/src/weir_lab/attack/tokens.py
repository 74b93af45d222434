"""Attacks by tokens and by names: what is forged, meant for others, or outlives its user. In an
open set nothing of it is needed.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from weir.access.signatures import PrivateKey
from weir.access.tokens import BEARER
from weir.client.access import AccessRule
from weir.errors import NotAuthenticated
from weir.model.batch_builder import encode
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir_lab.attack.strangers import Attack
from weir_lab.attack.targets import AUDIENCE, ISSUER, Target
from weir_lab.attack.wire import ask, connection

_KEY_ID = ISSUER
_LIFE_S = 600
_VISITOR = "visitor"
_BORROWER, _LENT = "borrower", "lent"


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _token(header: Any, payload: Any, sign: Callable[[bytes], bytes]) -> bytes:
    parts = (_encoded(msgspec.json.encode(part)) for part in (header, payload))
    signed = b".".join(parts)
    return signed + b"." + _encoded(sign(signed))


def _is_taken(target: Target, token: bytes) -> bool:
    """Return whether a token lets somebody in."""
    with connection(target, by_tls=True) as sock:
        replies = ask(sock, Login(BEARER, token))
        return bool(replies) and isinstance(replies[0], LoginStep) and replies[0].done


def _forged(key: PrivateKey) -> Iterator[bytes]:
    """Yield tokens that an issuer's key has not signed, or not for this set, this time, or a user
    of its namespace.
    """
    header = {"alg": key.algorithm.value, "kid": _KEY_ID}
    now = time.time()
    payload = {"iss": ISSUER, "sub": "eve", "aud": AUDIENCE, "exp": now + _LIFE_S}
    public = key.public(_KEY_ID).key
    for alg in ("none", "None", ""):
        yield _token({**header, "alg": alg}, payload, lambda _: b"")
        yield _token({**header, "alg": alg}, payload, lambda _: bytes(64))
        yield _token({**header, "alg": alg}, payload, key.sign)
    for secret in (public, public.hex().encode(), _encoded(public)):
        for alg in ("HS256", key.algorithm.value):

            def sign(words: bytes, secret: bytes = secret) -> bytes:
                return hmac.digest(secret, words, "sha256")

            yield _token({**header, "alg": alg}, payload, sign)
    stranger = PrivateKey.from_seed(b"a stranger's key" * 2)
    for more in ({}, {"kid": "another"}, {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}}):
        yield _token({**header, **more}, payload, stranger.sign)
    yield _token({**header, "crit": ["exp"]}, payload, key.sign)
    wrong: tuple[dict[str, Any], ...] = (
        {"aud": "another set"}, {"aud": []}, {"exp": now - 120}, {"exp": 0}, {"nbf": now + 120},
        {"iss": "somebody else"}, {"sub": "default/root"}, {"sub": "../default/root"}, {"sub": ""},
        {"sub": "root"},
    )  # fmt: skip
    for changes in wrong:
        yield _token(header, {**payload, **changes}, key.sign)


def forge_a_token(target: Target) -> bool:
    """Come by a token without a signature, with that of another algorithm or key, for another
    audience, from another time, or of a user of another namespace.
    """
    if not target.is_closed:
        return True
    key = PrivateKey(target.issuer)
    honest = {"iss": ISSUER, "sub": "eve", "aud": AUDIENCE, "exp": time.time() + _LIFE_S}
    header = {"alg": key.algorithm.value, "kid": _KEY_ID}
    assert _is_taken(target, _token(header, honest, key.sign)), "the honest user was refused"
    achieved = False
    for token in _forged(key):
        achieved |= _is_taken(target, token)
    return achieved


def outlive_a_user(target: Target) -> bool:
    """Go on by the token, the password or the roles of a user who was revoked: once as nobody, and
    once where somebody else has its name.
    """
    if not target.is_closed:
        return True
    with target.administrator() as root:
        root.access.create_user(_VISITOR, "a first password", ["own"])
        token = root.access.issue_token(_LIFE_S, user=_VISITOR, token_id="kept").token.encode()
        try:
            assert _is_taken(target, token), "the honest user was refused"
            root.access.revoke_user(_VISITOR)
            achieved = _is_taken(target, token) or _has_topics(target, "a first password")
            root.access.create_user(_VISITOR, "a second password")
            achieved |= _is_taken(target, token) or _has_topics(target, "a first password")
            # The namesake itself comes in, and has nothing of the one before.
            return achieved or _has_topics(target, "a second password")
        finally:
            root.access.revoke_user(_VISITOR)


def outlive_a_topic(target: Target) -> bool:
    """Go on with the rights, and the address, that one had of a topic which was deleted, where
    somebody else has made another one of its name.
    """
    if not target.is_closed:
        return True
    password = "a borrower's own"
    with target.administrator() as root:
        before = root.create_topic(_LENT)
        rule = AccessRule(("describe", "publish", "read"), "topic", _LENT)
        root.access.change_rules(_BORROWER, [rule])
        root.access.create_user(_BORROWER, password, [_BORROWER])
        try:
            assert target.answers(_BORROWER, password, [m.DescribeTopic(_LENT)]), (
                "the honest user was refused"
            )
            root.delete_topic(_LENT)
            after = root.create_topic(_LENT)
            root.publish(_LENT, b"a secret of its owner")
            return bool(target.answers(_BORROWER, password, list(_uses(before, after))))
        finally:
            root.access.revoke_user(_BORROWER)
            root.access.delete_role(_BORROWER)
            root.delete_topic(_LENT)


def _uses(before: m.TopicInfo, after: m.TopicInfo) -> Iterator[m.Request]:
    """Yield requests that a user with rights in a topic may send, by its name and by both
    addresses.
    """
    yield m.DescribeTopic(_LENT)
    for address in (before.addresses[0], after.addresses[0]):
        batch = memoryview(bytes(encode([b"v"], group=address.group)))
        yield m.Fetch(address, 0, 1 << 20)
        yield m.Produce(address, 0, batch)


def _has_topics(target: Target, password: str) -> bool:
    try:
        with target.connect(_VISITOR, password) as visitor:
            return bool(list(visitor.topics()))
    except NotAuthenticated:
        return False


ATTACKS: dict[str, Attack] = {
    "forge a token": forge_a_token,
    "outlive a user": outlive_a_user,
    "outlive a topic": outlive_a_topic,
}
