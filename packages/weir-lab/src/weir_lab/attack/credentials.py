"""Attacks on logins, proofs, signed frames and certificates of a closed set: replays, swaps,
reflections, downgrades, guesses and hostile names. In an open set nothing of it is needed.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from weir.access.credentials import derive_key
from weir.access.devices import Claim, Level, frame_keys, prove_broker
from weir.access.scram import MECHANISM, Challenge, ScramClient, ScramProof, encode_nonce
from weir.errors import RemoteProtocolError, WeirError
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.link import Lane, LinkHello, announce, encode_greeting, join_key
from weir.protocol.proof import FrameSigner, Proven
from weir_lab.attack.strangers import Attack
from weir_lab.attack.targets import (
    INSIDER,
    LOCKS,
    SECONDS,
    SIGNED,
    SIGNER,
    VICTIM,
    Target,
)
from weir_lab.attack.wire import (
    NONCE,
    ask,
    challenged,
    claim_of,
    connection,
    is_let_in,
    prove,
    prove_with,
    received,
    say,
)

_GUESSES = ("root", "password", "admin", "weir", "a" * 1_000)
#: Names that might be read as something else.
_NAMES = (
    "root\x00", "Root", "default/root/", "/root", "../root", "root,r=x", "root=2C", "=3Droot",
    "shard:1.0", "fleet:proving", "user:default/root#1", "anonymous", "root#1",
    "\uff52oot", "x" * 9_000,
)  # fmt: skip


# -- proofs of devices ---------------------------------------------------------------------------


def _let_in(replies: list[d.DeviceReply]) -> bool:
    return any(one.code == 0 for one in replies)


def _wrong_claims(asked: Any) -> Iterator[tuple[int, Claim]]:
    """Yield hubs and claims that the insider's secret must not be good for."""
    own = claim_of(asked, INSIDER, LOCKS, Level.PROOF)
    for changes in (
        {"hub": VICTIM}, {"system": asked.system ^ 1}, {"generation": 1}, {"boot": 2},
        {"partition": 0}, {"topic": SIGNED}, {"key_version": 2}, {"key_version": 0}, {"level": 0},
        {"level": 3}, {"device_nonce": bytes(16)}, {"device_nonce": asked.nonce},
        {"broker_nonce": bytes(16)}, {"broker_nonce": NONCE, "device_nonce": asked.nonce},
    ):  # fmt: skip
        yield INSIDER, msgspec.structs.replace(own, **changes)
    yield VICTIM, own
    yield VICTIM, msgspec.structs.replace(own, hub=VICTIM)


def prove_something_else(target: Target) -> bool:
    """Prove by the secret of another hub, or for other words than are meant."""
    achieved, number = False, 0
    while True:
        with connection(target) as sock:
            # The first challenge only says how many claims there are.
            found = challenged(sock, INSIDER, LOCKS)
            if found is None:
                return True
            claims = [*_wrong_claims(found)]
            if number == len(claims):
                return achieved
            hub, _ = claims[number]
            if hub != INSIDER and (found := challenged(sock, hub, LOCKS)) is None:
                return True
            _, claim = [*_wrong_claims(found)][number]
            achieved |= _let_in(say(sock, prove(target.insider, claim), 1))
        number += 1


def replay_a_proof(target: Target) -> bool:
    """Say what an honest device has said, on its own connection again and on others; and send the
    broker's own proof back.
    """
    with connection(target) as sock:
        asked = challenged(sock, INSIDER, LOCKS)
        if asked is None:
            return True
        claim = claim_of(asked, INSIDER, LOCKS, Level.PROOF)
        frame = prove(target.insider, claim)
        (reply,) = say(sock, frame, 1)
        assert isinstance(reply.content, Proven), "the honest device was refused"
        achieved = _let_in(say(sock, frame, 1))
    recorded = d.hello(INSIDER, 1, LOCKS) + frame + d.publish(1, b"again", 0)
    with connection(target) as sock:
        achieved |= _let_in(say(sock, recorded, 3))
    back = prove_with(claim, prove_broker(target.insider, claim))
    with connection(target) as sock:
        challenged(sock, INSIDER, LOCKS)
        achieved |= _let_in(say(sock, back, 1))
    return achieved


def prove_less(target: Target) -> bool:
    """Be content with a proof where frames must be signed; or sign nothing behind it."""
    with connection(target) as sock:
        asked = challenged(sock, SIGNER, SIGNED)
        if asked is None:
            return True
        less = claim_of(asked, SIGNER, SIGNED, Level.PROOF)
        achieved = _let_in(say(sock, prove(target.signer, less), 1))
    sock, _ = _signing(target)
    with sock:
        achieved |= _let_in(say(sock, d.publish(1, b"unsigned", 0), 1))
    return achieved


def _signing(target: Target) -> tuple[socket.socket, FrameSigner]:
    """Return the connection of an honest device that signs."""
    sock = target.dial()
    asked = challenged(sock, SIGNER, SIGNED)
    assert asked is not None
    claim = claim_of(asked, SIGNER, SIGNED, Level.SIGNED)
    (reply,) = say(sock, prove(target.signer, claim), 1)
    assert isinstance(reply.content, Proven), "the honest device was refused"
    return sock, FrameSigner(frame_keys(target.signer, claim).of_device)


def change_signed_frames(target: Target) -> bool:
    """On the path of a device that signs: repeat a frame, leave one out, change one, swap two, and
    send the broker's back.
    """
    if not target.is_closed:
        return True
    before = _held(target)
    tricks: tuple[Callable[[list[bytes]], bytes], ...] = (
        lambda frames: frames[0] + frames[0],
        lambda frames: frames[1],
        lambda frames: frames[1] + frames[0],
        lambda frames: frames[0][:12] + bytes([frames[0][12] ^ 1]) + frames[0][13:],
        lambda frames: frames[0][:-1] + bytes([frames[0][-1] ^ 1]),
    )
    for trick in tricks:
        sock, signer = _signing(target)
        with sock:
            # Without sequences: nothing but its MAC keeps a frame from being taken twice.
            frames = [signer.sign(d.publish(1, b"%d" % one)) for one in range(2)]
            sock.sendall(trick(frames))
            while received(sock):
                pass
    return _held(target) > before + 1  # the first of the frames that are repeated is whole


def _held(target: Target) -> int:
    """Return how many messages the topic of devices that sign has."""
    with target.administrator() as root, root.reader(SIGNED, follow=False) as reader:
        return sum(1 for _ in reader)


# -- logins --------------------------------------------------------------------------------------


def _log_in(
    target: Target, user: str, password: str, change: Callable[[bytes], bytes] = bytes,
    first: bytes | None = None, mechanism: str = MECHANISM,
) -> tuple[bool, bytes]:  # fmt: skip
    """Log in with what `change` makes of the last message; return if it worked, and it."""
    with connection(target, by_tls=bool(target.bundle)) as sock:
        client = ScramClient(user, encode_nonce(NONCE + b"12"))
        replies = ask(sock, Login(mechanism, client.first if first is None else first))
        if not replies or not isinstance(replies[0], LoginStep):
            return False, b""
        if replies[0].done:
            return True, b""
        try:
            challenge: Challenge = client.challenged(replies[0].message)
        except RemoteProtocolError:
            return False, b""
        key = derive_key(password, challenge.salt, challenge.iterations)
        last = change(ScramProof(challenge, key).final)
        replies = ask(sock, Login(mechanism, last))
        done = bool(replies) and isinstance(replies[0], LoginStep) and replies[0].done
        return done, last


def guess_passwords(target: Target) -> bool:
    """Try passwords that people take, and names that might be read as another's."""
    if not target.is_closed:
        return True
    achieved = False
    for guess in _GUESSES:
        achieved |= _log_in(target, "root", guess)[0]
    for name in _NAMES:
        with suppress(RemoteProtocolError, OSError):
            achieved |= _log_in(target, name, "mallory's own")[0]
    return achieved


def replay_a_login(target: Target) -> bool:
    """Repeat what an honest user has said, and change nonces, the channel and the mechanism."""
    if not target.is_closed:
        return True
    done, last = _log_in(target, "mallory", "mallory's own")
    assert done, "the honest user was refused"
    achieved = False
    changes: tuple[Callable[[bytes], bytes], ...] = (
        lambda _: last, lambda _: b"", lambda text: text.replace(b"c=biws", b"c=eSws"),
        lambda text: text.replace(b",r=", b",r=x"), lambda text: text[: text.rindex(b",p=")],
        lambda text: text[: text.rindex(b",p=")] + b",p=",
        lambda text: text[: text.rindex(b",p=")] + b",p=" + b64encode(bytes(32)),
        lambda text: text[: text.rindex(b",p=")] + b",p=" + b64encode(bytes(33)),
    )  # fmt: skip
    for change in changes:
        achieved |= _log_in(target, "mallory", "mallory's own", change)[0]
    for mechanism in ("PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "", "ANONYMOUS"):
        achieved |= _log_in(target, "mallory", "mallory's own", mechanism=mechanism)[0]
    for first in (b"", b"n,,n=root,r=", b"p=tls-unique,,n=root,r=" + b"x" * 24,
                  b"y,,n=root,r=" + b"x" * 24, b"n,a=root,n=mallory,r=" + b"x" * 24):  # fmt: skip
        achieved |= _log_in(target, "root", "", first=first)[0]
    return achieved


def be_two(target: Target) -> bool:
    """Log in once more on a connection that has a user, to be another, or behind a failure."""
    if not target.is_closed:
        return True
    with connection(target, by_tls=True) as sock:
        client = ScramClient("root", encode_nonce(NONCE + b"12"))
        step = Login(MECHANISM, client.first)
        replies = ask(sock, step, step, m.Hello("x"), m.ListTopics())
    return any(isinstance(one, m.Welcome | m.TopicList) for one in replies)


# -- TLS and certificates ------------------------------------------------------------------------


def _greeted(target: Target, context: ssl.SSLContext) -> bool:
    """Return whether a peer with this context is taken for somebody."""
    with suppress(OSError):
        sock = target.plain()
        with context.wrap_socket(sock, server_hostname=target.host) as secure:
            replies = ask(secure, m.Hello("x"), m.ListTopics())
            return any(not isinstance(one, m.Refusal) for one in replies)
    return False


def use_old_tls(target: Target) -> bool:
    """Speak TLS 1.1 or 1.2, without ALPN, or as another protocol, and get more than an alert."""
    if not target.is_closed:
        return False
    achieved = False
    for newest in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = target.context()
        with warnings.catch_warnings(), suppress(ValueError, ssl.SSLError):
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = newest
            context.set_ciphers("ALL:@SECLEVEL=0")
            with suppress(OSError):
                sock = target.plain()
                with context.wrap_socket(sock, server_hostname=target.host):
                    achieved = True
    for protocols in ([], ["h2"]):
        context = ssl.create_default_context(cafile=target.bundle)
        if protocols:
            context.set_alpn_protocols(protocols)
        achieved |= _greeted(target, context)
    return achieved


def show_a_bad_certificate(target: Target) -> bool:
    """Come as the administrator with a certificate that has expired, is not valid yet, was revoked,
    is of a node or a device, or of another CA.
    """
    achieved = not target.is_closed
    for certificate, key in target.bad.values():
        context = target.context()
        context.load_cert_chain(certificate, key)
        achieved |= _greeted(target, context)
    return achieved


def speak_as_a_node(target: Target) -> bool:
    """Greet as a node of the set, without TLS, with it, and with somebody else's certificate."""
    hello = LinkHello(1, target.system or 1, 0, 3, 0, 1, 1, 3, 1, Lane.QUICK, 1, 0)
    contexts: list[ssl.SSLContext | None] = [None]
    if target.bundle:
        contexts.append(target.context())
        for certificate, key in target.bad.values():
            contexts.append(target.context())
            contexts[-1].load_cert_chain(certificate, key)  # type: ignore[union-attr]
    return any(is_let_in(target, encode_greeting(hello), context) for context in contexts)


def come_for_an_added_node(target: Target) -> bool:
    """Greet as a node that was added and has not come: with no secret, with one that is made up,
    and with that of a command that was printed before the last.
    """
    lost, replace = b"a lost command's", msgspec.structs.replace
    right = secrets.token_bytes(len(lost))
    with target.added_node(lost, right) as node:
        hello = LinkHello(
            1, target.system, 0, node, 0, 1, 1, 3, 1, Lane.QUICK, 1, 0, "127.0.0.1", 1, 7, 7
        )  # fmt: skip

        def by(secret: bytes) -> LinkHello:
            return replace(hello, joins=announce(join_key(secret), hello))

        hellos = [
            hello, replace(hello, birth=0), replace(hello, joins=bytes(16)), by(bytes(16)), by(lost)
        ]  # fmt: skip
        # Else it is refused because the node has not heard yet who was added.
        deadline = time.monotonic() + SECONDS
        while not is_let_in(target, encode_greeting(by(right))):
            if time.monotonic() > deadline:
                raise WeirError("not even the secret of the added node lets it in")
            time.sleep(0.01)
        return any(is_let_in(target, encode_greeting(one)) for one in hellos)


ATTACKS: dict[str, Attack] = {
    "prove by another's secret": prove_something_else,
    "replay a proof": replay_a_proof,
    "prove less than is demanded": prove_less,
    "change signed frames": change_signed_frames,
    "guess a password": guess_passwords,
    "replay a login": replay_a_login,
    "log in twice": be_two,
    "speak an old TLS": use_old_tls,
    "show a bad certificate": show_a_bad_certificate,
    "speak as a node": speak_as_a_node,
    "come for an added node": come_for_an_added_node,
}
