"""SCRAM-SHA-256, both sides, as state machines (RFC 5802, RFC 7677).

    client                                        broker
    ScramClient.first            n,,n=USER,r=C ->   parse_first
    ScramClient.challenged  <- r=C+S,s=SALT,i=N     ScramServer.challenge
    ScramProof.final      c=biws,r=C+S,p=PROOF ->   ScramServer.finish
    ScramProof.check                    <- v=SIG

Both prove that they know the password, and neither sends it: a broker that does not hold the user's
verifier cannot sign. An eavesdropper can still try passwords offline, so both sides use it only
within TLS, or on loopback: `check_channel`. There is no channel binding, because Python's TLS 1.3
does not give its exporter.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode

import msgspec

from weir.access.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SaltedKey,
    ScramVerifier,
    client_key,
    server_key,
)
from weir.errors import NotAuthenticated, RemoteProtocolError

MECHANISM = "SCRAM-SHA-256"
#: Of one message, before it is read; each of ours is below 600.
MESSAGE_BYTES_MAX = 1_024
NONCE_CHARACTERS_MIN = 16
NONCE_CHARACTERS_MAX = 128
#: Of a nonce that `encode_nonce` makes.
NONCE_BYTES = 18

_GS2 = "n,,"
_CHANNEL = b64encode(_GS2.encode()).decode()
#: Printable ASCII without the comma (RFC 5802, section 7).
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_FAILED = "the login failed: check the user and the password"


def encode_nonce(random: bytes) -> str:
    """Return a nonce made of 18 random bytes; each side needs a new one for every login."""
    if len(random) < NONCE_BYTES:
        raise ValueError(f"a nonce needs {NONCE_BYTES} random bytes, not {len(random)}")
    return b64encode(random).decode()


# -- the broker's side --------------------------------------------------------------------------


class ClientFirst(msgspec.Struct, frozen=True):
    """The first message of a client: the user that it claims, its nonce, and the signed words."""

    user: str
    nonce: str
    bare: str


def parse_first(message: bytes) -> ClientFirst:
    """Read a client's first message. Raises `RemoteProtocolError` if it is none, or asks for what
    is not there: channel binding, another identity, an extension.
    """
    text = _decode(message)
    if not text.startswith(_GS2):
        raise RemoteProtocolError(
            f"a login begins with {_GS2!r}: no channel binding, and no second name to act as"
        )
    bare = text[len(_GS2) :]
    user, nonce = _attributes(bare, "nr")
    _check_nonce(nonce)
    return ClientFirst(_unescape(user), nonce, bare)


class ScramServer:
    """A login under way: the client has named a user, and must prove that it has the password."""

    __slots__ = ("_first", "_is_over", "_nonce", "_verifier", "challenge")

    def __init__(self, first: ClientFirst, verifier: ScramVerifier, nonce: str) -> None:
        """Ask for a proof of `verifier`, see `choose_verifier`. `nonce` is this side's, new for
        every login, see `encode_nonce`.
        """
        _check_nonce(nonce)
        self._first = first
        self._verifier = verifier
        self._nonce = first.nonce + nonce
        self._is_over = False
        salt = b64encode(verifier.salt).decode()
        #: What is sent to the client.
        self.challenge = f"r={self._nonce},s={salt},i={verifier.iterations}".encode()

    def finish(self, message: bytes) -> bytes:
        """Check a client's last message, return what is sent to it: the proof of this side.

        The user of `first` is logged in then. Raises `NotAuthenticated` for a proof that is wrong,
        whatever the reason, also for a second attempt; `RemoteProtocolError` if it is no proof.
        """
        if self._is_over:
            raise NotAuthenticated(_FAILED)
        self._is_over = True  # one guess a challenge
        text = _decode(message)
        channel, nonce, proof = _attributes(text, "crp")
        unproven = text[: text.rindex(",p=")]
        words = ",".join((self._first.bare, self.challenge.decode(), unproven)).encode()
        signature = hmac.digest(self._verifier.stored_key, words, "sha256")
        claimed = _bytes(proof)
        # All of it is done and compared whatever is wrong: time tells nothing either.
        same_nonce = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        same_channel = hmac.compare_digest(channel.encode(), _CHANNEL.encode())
        key = _xor(claimed.ljust(len(signature), b"\0")[: len(signature)], signature)
        same_key = hmac.compare_digest(hashlib.sha256(key).digest(), self._verifier.stored_key)
        whole = len(claimed) == len(signature)
        if not (same_nonce & same_channel & same_key & whole):
            raise NotAuthenticated(_FAILED)
        return b"v=" + b64encode(hmac.digest(self._verifier.server_key, words, "sha256"))


# -- the client's side --------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True):
    """What a broker asks: derive a key from the password with this salt, so many times, and sign
    with it.
    """

    salt: bytes
    iterations: int
    nonce: str
    words: str

    def fits(self, key: SaltedKey) -> bool:
        """Return whether a kept key was made with this salt and this count."""
        return (key.salt, key.iterations) == (self.salt, self.iterations)


class ScramClient:
    """A client that logs in."""

    __slots__ = ("_bare", "_nonce", "first")

    def __init__(self, user: str, nonce: str) -> None:
        """Log in as `user`; `nonce` is new for every login, see `encode_nonce`."""
        _check_nonce(nonce)
        self._nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        #: What is sent first.
        self.first = (_GS2 + self._bare).encode()

    def challenged(self, message: bytes) -> Challenge:
        """Read what the broker asks. Raises `RemoteProtocolError` if this side must not answer it:
        a nonce without this side's or without one of the broker's, a count of iterations that
        makes guessing cheap or this side work for minutes.
        """
        text = _decode(message)
        nonce, salt_text, count = _attributes(text, "rsi")
        _check_nonce(nonce[len(self._nonce) :] if nonce.startswith(self._nonce) else "")
        salt = _bytes(salt_text)
        if len(salt) < SALT_BYTES:
            raise RemoteProtocolError(f"a salt of {len(salt)} bytes; {SALT_BYTES} are needed")
        if not re.fullmatch("[1-9][0-9]{0,9}", count, re.ASCII):
            raise RemoteProtocolError("the broker's count of iterations is no number")
        iterations = int(count)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            allowed = f"{ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}"
            raise RemoteProtocolError(
                f"the broker asks for {iterations:,} iterations, not {allowed}"
            )
        return Challenge(salt, iterations, nonce, f"{self._bare},{text}")


class ScramProof:
    """A client's answer to a challenge, which waits for the broker's own proof."""

    __slots__ = ("_signature", "final")

    def __init__(self, challenge: Challenge, key: SaltedKey) -> None:
        """Prove by `key` that this side has the password. It must fit the challenge."""
        if not challenge.fits(key):
            raise ValueError("the key was made with another salt: derive it for this challenge")
        unproven = f"c={_CHANNEL},r={challenge.nonce}"
        words = f"{challenge.words},{unproven}".encode()
        mine = client_key(key)
        signature = hmac.digest(hashlib.sha256(mine).digest(), words, "sha256")
        proof = b64encode(_xor(mine, signature)).decode()
        self._signature = hmac.digest(server_key(key), words, "sha256")
        #: What is sent.
        self.final = f"{unproven},p={proof}".encode()

    def check(self, message: bytes) -> None:
        """Check the broker's proof: only then has the broker proved its identity to this side.

        Raises `NotAuthenticated` if the broker refused, and `RemoteProtocolError` if it does not
        have this user's verifier: it is not the broker that it claims to be.
        """
        text = _decode(message)
        if text.startswith("e="):
            raise NotAuthenticated(_FAILED)
        (signature,) = _attributes(text, "v")
        if not hmac.compare_digest(_bytes(signature), self._signature):
            raise RemoteProtocolError(
                "the broker does not know this user's password either: it is not the one it claims "
                "to be, leave it"
            )


def check_channel(*, is_encrypted: bool, is_loopback: bool) -> None:
    """Raise `NotAuthenticated` where a password must not be used: in plain text over a network."""
    if not (is_encrypted or is_loopback):
        raise NotAuthenticated("passwords and tokens need TLS: connect by weirs://")


# -- the words ----------------------------------------------------------------------------------


def _decode(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a login message of {len(message):,} bytes; {MESSAGE_BYTES_MAX:,} allowed"
        )
    try:
        return bytes(message).decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a login message is UTF-8") from None


def _attributes(text: str, names: str) -> list[str]:
    """Return the values of exactly these attributes, in this order: an extension that this side
    does not know might change what the others mean.
    """
    parts = text.split(",")
    if [part[:2] for part in parts] != [f"{name}=" for name in names]:
        expected = ",".join(f"{name}=" for name in names)
        raise RemoteProtocolError(f"a login message has {expected} and nothing else")
    return [part[2:] for part in parts]


def _check_nonce(nonce: str) -> None:
    if not NONCE_CHARACTERS_MIN <= len(nonce) <= NONCE_CHARACTERS_MAX or not _NONCE.fullmatch(
        nonce
    ):
        raise RemoteProtocolError(
            f"a nonce has {NONCE_CHARACTERS_MIN} to {NONCE_CHARACTERS_MAX} printable characters of "
            "the side that made it"
        )


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("a login message has bytes in base64") from None


def _escape(user: str) -> str:
    if not user or "\0" in user:
        raise RemoteProtocolError("a user's name has at least one character, and no zero")
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape(user: str) -> str:
    if not user or "\0" in user or re.search("=(?!2C|3D)", user):
        raise RemoteProtocolError("a user's name is empty, or writes `,` and `=` as they are")
    return user.replace("=2C", ",").replace("=3D", "=")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
