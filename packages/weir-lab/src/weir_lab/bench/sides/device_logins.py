"""How devices of a burst prove their identity: not at all, by a proof, signed frames, or TLS.

Speakers for `weir_lab.bench.sides.devices`, one a device: as firmware would do it, with all the
work that a device has. Those of a fleet publish only once the broker has proved itself as well.
"""

from __future__ import annotations

import secrets
import ssl
from typing import Any, Literal, Protocol, cast, get_args

import msgspec

from weir.access.devices import (
    NONCE_BYTES,
    SECRET_BYTES,
    Level,
    check_proof,
    derive_secret,
    frame_keys,
    prove_broker,
    prove_device,
)
from weir.errors import WeirError
from weir.protocol import device
from weir.protocol.device import DeviceHello, DeviceOpcode, DeviceReply
from weir.protocol.proof import Challenge, DeviceProof, FrameSigner, Proven
from weir.tls.dialling import check_role, dialler_of
from weir.tls.files import ClientFiles
from weir.tls.peers import certificate_of

Auth = Literal["none", "secret", "signed", "tls"]
_READ = 1 << 14


class Speaker(Protocol):
    """A device's side of a dialect."""

    @property
    def confirmed(self) -> int:
        """How many confirms have come."""

    @property
    def ready(self) -> bool:
        """Whether the message may be sent."""

    def opening(self) -> bytes:
        """Return what is sent as soon as the connection is there."""

    def receive(self, data: bytes) -> bytes:
        """Take what arrived; return what has to be answered."""


class Login(msgspec.Struct, frozen=True):
    """What devices prove their identity by: the key of their fleet and the id of the system, or the
    bundle of CAs by which they verify the broker, as a file.
    """

    auth: Auth = "none"
    key: bytes = b""
    system: int = 0
    ca: str = ""


def check_auth(text: str) -> Auth:
    """Return what is an `Auth`. Raises `ValueError` for other words."""
    if text not in get_args(Auth):
        raise ValueError(f"auth={text}: it must be {', '.join(get_args(Auth))}")
    return cast(Auth, text)


class Proving:
    """A device of a fleet: hello, a challenge, a proof, the broker's own, and then its message."""

    __slots__ = ("_asked", "_claim", "_hello", "_level", "_replies", "_secret", "_signer",
                 "confirmed", "ready")  # fmt: skip

    def __init__(self, hub: int, topic: str, login: Login) -> None:
        """Be a hub with one lock, of generation 0; make its secret, which firmware has flashed."""
        self.confirmed = 0
        #: Whether the broker has proved itself.
        self.ready = False
        self._level = Level.SIGNED if login.auth == "signed" else Level.PROOF
        self._secret = derive_secret(login.key, login.system, hub, 0)
        self._hello = DeviceHello(0, hub, 1, device.BY_HUB, topic)
        self._replies = device.DeviceReplies()
        self._claim: Any = None
        self._signer: FrameSigner | None = None

    def opening(self) -> bytes:
        """Return the hello."""
        hello = self._hello
        return device.hello(hello.hub, hello.boot, hello.topic)

    def sealed(self, message: bytes) -> bytes:
        """Return a message as it is sent, signed where frames are."""
        return message if self._signer is None else self._signer.sign(message)

    def receive(self, data: bytes) -> bytes:
        """Take replies; return the proof that answers a challenge. Raises `WeirError` for one that
        refuses, and for a broker that is none.
        """
        answer = b""
        for reply in self._replies.receive(data):
            answer += self._take(reply)
        return answer

    def _take(self, reply: DeviceReply) -> bytes:
        if isinstance(reply.content, Challenge):
            return self._prove(reply.content)
        if reply.code:
            raise WeirError(f"refused with code {reply.code}")
        if reply.opcode == DeviceOpcode.PROVE:
            self._check(reply.content)
        elif not self.ready:
            raise WeirError("the broker asked for no proof")
        else:
            self.confirmed += reply.opcode == DeviceOpcode.PUBLISH_SEQUENCED
        return b""

    def _prove(self, asked: Challenge) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        unproven = DeviceProof(0, 0, 1, self._level, nonce, bytes(SECRET_BYTES))
        claim = self._claim = unproven.claim(asked, self._hello)
        return device.prove(
            msgspec.structs.replace(unproven, proof=prove_device(self._secret, claim))
        )

    def _check(self, content: object) -> None:
        expected = prove_broker(self._secret, self._claim)
        if not isinstance(content, Proven) or not check_proof(expected, content.proof):
            raise WeirError("the server is not the broker of this device")
        self.ready = True
        if self._level == Level.SIGNED:
            keys = frame_keys(self._secret, self._claim)
            self._signer = FrameSigner(keys.of_device)
            self._replies.expect_signed(keys)


class Encrypted:
    """A device inside TLS, which verifies the broker; then it speaks as `inner` does."""

    __slots__ = ("_incoming", "_inner", "_is_shaken", "_outgoing", "_tls")

    def __init__(self, inner: Speaker, ca: str, host: str = "127.0.0.1") -> None:
        """Connect to a host by this name, with a bundle of CAs as a file."""
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = dialler_of(ClientFiles(ca)).context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._is_shaken = False

    @property
    def confirmed(self) -> int:
        """How many confirms have come."""
        return self._inner.confirmed

    @property
    def ready(self) -> bool:
        """Whether the handshake is done, and the message may be sent."""
        return self._is_shaken and self._inner.ready

    def opening(self) -> bytes:
        """Return the first bytes of the handshake."""
        return self._shake()

    def sealed(self, message: bytes) -> bytes:
        """Return a message as it is sent."""
        return self._encrypt(message)

    def receive(self, data: bytes) -> bytes:
        """Take records; return what has to be answered. Raises `WeirError`."""
        self._incoming.write(data)
        answer = b"" if self._is_shaken else self._shake()
        if not self._is_shaken:
            return answer
        try:
            while plain := self._tls.read(_READ):
                answer += self._encrypt(self._inner.receive(plain))
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise WeirError(f"TLS: {error.reason}") from None
        return answer

    def _shake(self) -> bytes:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        except ssl.SSLError as error:
            raise WeirError(f"TLS: {error.reason}") from None
        found: Any = self._tls.getpeercert()
        check_role(certificate_of(dict(found)), self._tls.selected_alpn_protocol())
        self._is_shaken = True
        return self._outgoing.read() + self._encrypt(self._inner.opening())

    def _encrypt(self, data: bytes) -> bytes:
        if data:
            self._tls.write(data)
        return self._outgoing.read()
