"""What a set keeps of a user's password: a SCRAM verifier (RFC 5802, section 3; RFC 7677).

An attacker who reads a verifier cannot log in with it, but can try passwords offline, and can pose
as the broker to that user. So it is a secret, and is wrapped at rest (`weir.access.wrapping`).
"""

from __future__ import annotations

import hashlib
import hmac
import stringprep
import unicodedata
from typing import Annotated

import msgspec

from weir.codec import Unsigned32
from weir.errors import BadRequest

#: Of new passwords, and of the false verifiers of users that do not exist: one count a set, because
#: a broker that answers with another one tells which users are there. About 30 ms of one core.
ITERATIONS = 120_000
#: What a client does for a broker at least (RFC 7677, section 4) and at most: about a quarter of a
#: second.
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
SALT_BYTES = 16
KEY_BYTES = hashlib.sha256().digest_size
PASSWORD_BYTES_MAX = 1_024

Salt = Annotated[bytes, msgspec.Meta(min_length=SALT_BYTES, max_length=64)]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class ScramVerifier(msgspec.Struct, frozen=True, array_like=True):
    """What a broker must know to check a user's SCRAM-SHA-256 proof, and to prove itself.

    It is stored as msgpack `[iterations, salt, stored key, server key]`, 90 bytes.
    """

    iterations: Unsigned32
    salt: Salt
    stored_key: Key
    server_key: Key

    def __repr__(self) -> str:
        """Show no key: errors and logs print what they get."""
        return f"ScramVerifier(iterations={self.iterations})"


class SaltedKey(msgspec.Struct, frozen=True, array_like=True):
    """What a client may keep instead of the password: it costs 30 ms to make, and logs in to all
    nodes of a set without the password, for as long as that has this salt and this count.
    """

    iterations: Unsigned32
    salt: Salt
    key: Key

    def __repr__(self) -> str:
        """Show no key."""
        return f"SaltedKey(iterations={self.iterations})"


def derive_key(password: str, salt: bytes, iterations: int) -> SaltedKey:
    """Return the key that a password makes with a salt, by `iterations` of PBKDF2-HMAC-SHA-256.

    This takes 0.25 µs an iteration of one core, and releases the interpreter lock meanwhile. Raises
    `BadRequest` for a password that cannot be one.
    """
    prepared = prepare_password(password)
    key = hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)
    return SaltedKey(iterations, salt, key)


def make_verifier(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramVerifier:
    """Return what is stored of a password; `salt` is 16 random bytes, new for every password.

    Raises `BadRequest` for a password, a salt or a count of iterations that cannot be one.
    """
    if not SALT_BYTES <= len(salt) <= 64:
        raise BadRequest(f"a salt has {SALT_BYTES} to 64 bytes, not {len(salt)}", SALT_BYTES)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        allowed = f"{ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}"
        raise BadRequest(f"{allowed} iterations are allowed, not {iterations:,}", ITERATIONS_MAX)
    salted = derive_key(password, salt, iterations)
    return ScramVerifier(
        iterations, salt, hashlib.sha256(client_key(salted)).digest(), server_key(salted)
    )


def check_verifier(verifier: ScramVerifier) -> None:
    """Raise `BadRequest` for a new verifier whose challenge differs from that of a user who does
    not exist, by its count of iterations or by the size of its salt: it would reveal which users
    exist.
    """
    if verifier.iterations != ITERATIONS:
        raise BadRequest(
            f"verifiers of this set are made by {ITERATIONS:,} iterations, not by "
            f"{verifier.iterations:,}: set the password by this release's client or `weir user`",
            ITERATIONS,
        )
    if len(verifier.salt) != SALT_BYTES:
        size = len(verifier.salt)
        raise BadRequest(f"a verifier has {SALT_BYTES} bytes of salt, not {size}", SALT_BYTES)


def false_verifier(secret: bytes, user: str, iterations: int = ITERATIONS) -> ScramVerifier:
    """Return the verifier that nobody's password fits, for a user that does not exist.

    It is the same whenever and wherever it is made with the same `secret`, which all shards of a
    set have and nobody else: else a second attempt would tell that the salt is made up.
    """
    name = user.encode()
    parts = [
        hmac.digest(secret, label + b"\0" + name, "sha256")
        for label in (b"weir false salt", b"weir false stored key", b"weir false server key")
    ]
    return ScramVerifier(iterations, parts[0][:SALT_BYTES], parts[1], parts[2])


def choose_verifier(
    found: ScramVerifier | None, secret: bytes, user: str, iterations: int = ITERATIONS
) -> ScramVerifier:
    """Return `found`, or the false verifier of a user that does not exist. The false one is
    made either way, so that both cost the same.
    """
    false = false_verifier(secret, user, iterations)
    return false if found is None else found


def client_key(salted: SaltedKey) -> bytes:
    """Return the key by which a client proves itself; its SHA-256 is the stored key."""
    return hmac.digest(salted.key, b"Client Key", "sha256")


def server_key(salted: SaltedKey) -> bytes:
    """Return the key by which a broker proves itself."""
    return hmac.digest(salted.key, b"Server Key", "sha256")


def prepare_password(password: str) -> bytes:
    """Return the UTF-8 of a password in the one form that all ways to type it have (SASLprep, RFC
    4013): a keyboard that composes letters gives the same as one that does not.

    Raises `BadRequest` where it is empty, too long, or has a character that it may not have.
    """
    if len(password) > PASSWORD_BYTES_MAX:
        raise BadRequest(f"a password has at most {PASSWORD_BYTES_MAX:,} bytes", PASSWORD_BYTES_MAX)
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one
        for one in password
        if not stringprep.in_table_b1(one)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise BadRequest("a password has at least one character")
    if any(is_bad(one) for one in prepared for is_bad in _PROHIBITED):
        raise BadRequest("a password has no control characters, and only assigned ones of Unicode")
    if any(map(stringprep.in_table_d1, prepared)):
        ends_right = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if any(map(stringprep.in_table_d2, prepared)) or not ends_right:
            raise BadRequest("a password mixes right-to-left letters with others: use one kind")
    data = prepared.encode()
    if len(data) > PASSWORD_BYTES_MAX:
        raise BadRequest(f"a password has at most {PASSWORD_BYTES_MAX:,} bytes", PASSWORD_BYTES_MAX)
    return data


#: RFC 4013, sections 2.3 and 2.5; unassigned characters too, because a stored password must stay
#: itself.
_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
