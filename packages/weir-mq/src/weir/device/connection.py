"""One connection of a device, made again whenever it ends: blocking, and bounded in time."""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque
from collections.abc import Container
from random import Random

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
from weir.errors import (
    BadRequest,
    Disconnected,
    ErasedBoot,
    NotAuthenticated,
    Overloaded,
    ProofNeeded,
    Refused,
    RemoteProtocolError,
    UnknownTopic,
    refusal,
)
from weir.protocol import device as wire
from weir.protocol.device import DeviceHello, DeviceOpcode, DeviceReply
from weir.protocol.proof import Challenge, DeviceProof, FrameSigner, Proven
from weir.tls.dialling import SecureHost, dialler_of

RETRY_FIRST = 0.05
RETRY_MOST = 2.0
#: A connection that only waits pings so often: a broker that is gone is noticed, and it is not
#: taken for gone itself.
PING_SECONDS = 30.0
_READ = 1 << 16


class DeviceSecret(msgspec.Struct, frozen=True):
    """The secret that is flashed into a device of a fleet, by which it proves its identity.

    `secret` are the 32 bytes that were derived for its hub, this `generation` and this
    `key_version` of the fleet's key. With `signed` it signs all frames, and takes none that are not
    signed, also where its fleet does not demand that.
    """

    secret: bytes
    generation: int = 0
    key_version: int = 1
    signed: bool = False

    @classmethod
    def derived(
        cls, fleet_key: bytes, system: int, hub: int, generation: int = 0, key_version: int = 1,
        signed: bool = False,
    ) -> DeviceSecret:  # fmt: skip
        """Return the secret of a hub, made of its fleet's key, which no device should have: for a
        gateway that speaks for a fleet, and for tests. Raises `ValueError` for a key of another
        size than 32 bytes, or a generation that cannot be.
        """
        secret = derive_secret(fleet_key, system, hub, generation)
        return cls(secret, generation, key_version, signed)

    def __post_init__(self) -> None:
        """Raise `BadRequest` for a secret of another size."""
        if len(self.secret) != SECRET_BYTES:
            raise BadRequest(f"the secret of a device has {SECRET_BYTES} bytes", SECRET_BYTES)

    def __repr__(self) -> str:
        """Show no secret."""
        return (
            f"DeviceSecret(generation={self.generation}, key_version={self.key_version}, "
            f"signed={self.signed})"
        )


class DeviceConnection:
    """Says `hello` first, then what else every new connection must say.

    Every call ends within `timeout` seconds, or at the deadline it is given.
    """

    def __init__(
        self,
        host: str,
        port: int,
        hello: DeviceHello,
        timeout: float,
        random: Random,
        secret: DeviceSecret | None = None,
    ) -> None:
        """Connect with the first call. With a `secret` speak only to a broker that asks for a
        proof, and gives one.
        """
        self._secret = secret
        self._signer: FrameSigner | None = None
        self.timeout = timeout
        #: Replies that came, in order; notifies are not among them.
        self.unread: deque[DeviceReply] = deque()
        #: Locks that were told that there is something to pull.
        self.notified: set[int] = set()
        #: Locks whose subscription the broker has ended, and why.
        self.ended: dict[int, int] = {}
        self._place = (host, port)
        self._hello = hello
        self._subscribes: dict[int, bytes] = {}
        self._random = random
        self._socket: socket.socket | None = None
        self._replies = wire.DeviceReplies()
        #: What a call that ran out of time raises.
        self._given_up: Disconnected | None = None

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def subscribes(self, sn: int) -> None:
        """The lock `sn` is about to subscribe: why it ended before says nothing any more."""
        self.ended.pop(sn, None)

    def subscribed(self, sn: int, frame: bytes) -> None:
        """Subscribe the lock `sn` again on every new connection, unless its end came at once."""
        if sn not in self.ended:
            self._subscribes[sn] = frame

    def is_subscribed(self, sn: int) -> bool:
        """Return whether the lock `sn` is subscribed, as far as is known."""
        return sn in self._subscribes

    def end(self, sn: int, code: int) -> None:
        """The broker does not know the subscription of the lock `sn` any more."""
        self.ended[sn] = code
        self._subscribes.pop(sn, None)

    def ask(
        self, frame: bytes, *, again: bool, fine: Container[int] = (0,), topic: str = ""
    ) -> DeviceReply:
        """Send one frame and return its reply; over a new connection if it may be sent `again`.

        Raises what the broker refused, unless its code is `fine`; the text tells the `topic` that
        the frame names.
        """
        deadline = time.monotonic() + self.timeout
        attempt = 0
        while True:
            try:
                self.connect(deadline)
                self.write(frame, deadline)
                self.fill(deadline)
            except Disconnected as error:
                self.close()
                if not again:
                    raise
                attempt += 1
                self.pause(attempt, deadline, error)
                continue
            reply = self.unread.popleft()
            if reply.code in fine:
                return reply
            refused = refusal(reply.code, _reason(reply.code, topic), reply.offset)
            if not refused.retryable:
                raise refused
            attempt += 1
            self.pause(attempt, deadline, refused)

    def listen(self, sn: int, seconds: float) -> bool:
        """Wait so long for a notify of lock `sn`; return whether one came."""
        deadline = time.monotonic() + seconds
        while sn not in self.notified and (left := deadline - time.monotonic()) > 0:
            try:
                self.connect(time.monotonic() + self.timeout)
                self.receive(min(left, PING_SECONDS))
            except TimeoutError:
                if left > PING_SECONDS:
                    self.ask(wire.frame(DeviceOpcode.PING, 0, b""), again=True)
            except Disconnected:
                self.close()
        return sn in self.notified

    def connect(self, deadline: float) -> None:
        """Connect and say hello, unless that is done; try again until the deadline."""
        attempt = 0
        while self._socket is None:
            try:
                self._dial(deadline)
            except (OSError, Disconnected) as error:
                self.close()
                attempt += 1
                self.pause(attempt, deadline, error)

    def _dial(self, deadline: float) -> None:
        self._socket = socket.create_connection(self._place, self._left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(host := self._place[0], SecureHost):
            # Not by this deadline: a broker that thousands come back to takes them in turn.
            self._socket = dialler_of(host.files).connect_blocking(self._socket, host)
        self._replies, self._signer = wire.DeviceReplies(), None
        self.unread.clear()
        self.notified.clear()
        self._check(self._say_hello(deadline))
        for sn, frame in list(self._subscribes.items()):
            code = self._greet(frame, deadline).code
            if code and not refusal(code, "").retryable:
                self.end(sn, code)  # the hub's other locks go on
            else:
                self._check(code)

    def _greet(self, frame: bytes, deadline: float) -> DeviceReply:
        self.write(frame, deadline)
        self.fill(deadline)
        return self.unread.popleft()

    def _say_hello(self, deadline: float) -> int:
        hello = self._hello
        frame = wire.hello(hello.hub, hello.boot, hello.topic, hello.partition, hello.sn)
        reply = self._greet(frame, deadline)
        if self._secret is None or (reply.code and reply.code != ProofNeeded.code):
            return reply.code
        if not isinstance(reply.content, Challenge):
            self.close()
            raise NotAuthenticated(
                f"{self._name} asks for no proof, and gives none: it may be another server, or the "
                "broker knows no fleet with this hub (`weir device list` shows them)"
            )
        return self._prove(reply.content, self._secret, deadline)

    def _prove(self, asked: Challenge, own: DeviceSecret, deadline: float) -> int:
        """Answer a challenge, and check the broker's own proof; return the code of its reply."""
        hello, nonce = self._hello, secrets.token_bytes(NONCE_BYTES)
        level = max(asked.level, Level.SIGNED if own.signed else Level.PROOF)
        unproven = DeviceProof(
            hello.sn, own.generation, own.key_version, level, nonce, bytes(SECRET_BYTES)
        )
        claim = unproven.claim(asked, hello)
        proof = msgspec.structs.replace(unproven, proof=prove_device(own.secret, claim))
        reply = self._greet(wire.prove(proof), deadline)
        if reply.code:
            return reply.code
        expected = prove_broker(own.secret, claim)
        if not isinstance(reply.content, Proven) or not check_proof(expected, reply.content.proof):
            self.close()
            raise NotAuthenticated(
                f"{self._name} does not have the secret of this hub: it is not its broker"
            )
        if level >= Level.SIGNED:
            keys = frame_keys(own.secret, claim)
            self._signer = FrameSigner(keys.of_device)
            self._replies.expect_signed(keys)
        return 0

    def _check(self, code: int) -> None:
        if code == 0:
            return
        self.close()
        error = refusal(code, f"hello: {_reason(code, self._hello.topic)}")
        if not error.retryable:
            raise error
        raise Disconnected(str(error))

    def write(self, data: bytes, deadline: float) -> None:
        """Send bytes. Raises `Disconnected`."""
        assert self._socket is not None
        try:
            self._socket.settimeout(self._left(deadline))
            self._socket.sendall(data if self._signer is None else self._signer.sign(data))
        except OSError as error:
            raise self._gone(error) from error

    def fill(self, deadline: float) -> None:
        """Wait for at least one reply. Raises `Disconnected`."""
        while not self.unread:
            try:
                self.receive(self._left(deadline))
            except TimeoutError as error:
                raise self._gone(error) from error

    def receive(self, seconds: float) -> None:
        """Take what comes. Raises `TimeoutError` if that is nothing, and `Disconnected`."""
        assert self._socket is not None
        try:
            self._socket.settimeout(seconds)
            data = self._socket.recv(_READ)
            replies = self._replies.receive(data)
        except TimeoutError:
            raise
        except (OSError, RemoteProtocolError) as error:
            # A stream that is out of step does not come right again; a new connection begins anew.
            raise self._gone(error) from error
        if not data:
            raise self._gone(None)
        for reply in replies:
            if reply.opcode == DeviceOpcode.NOTIFY:
                self.notified.add(reply.sn)
                if reply.code:
                    self.end(reply.sn, reply.code)
            else:
                self.unread.append(reply)

    def pause(self, attempt: int, deadline: float, why: Exception) -> None:
        """Wait, longer each time. Raises `Disconnected` if the deadline comes first, and again if
        it is `why`.
        """
        if why is self._given_up:
            raise why
        longest = min(RETRY_MOST, RETRY_FIRST * 2 ** min(attempt - 1, 16))
        wait = (0.5 + self._random.random()) * longest
        if isinstance(why, Overloaded):
            wait += why.detail / 1_000
        if time.monotonic() + wait >= deadline:
            self.close()
            advice = "check that a broker runs there, its host and port"
            if isinstance(why, Refused):
                advice = "see what the broker logs, and `weir node status`"
            self._given_up = Disconnected(
                f"nothing confirmed by {self._name} within {self.timeout:g} s ({why}): {advice}"
            )
            raise self._given_up from why
        time.sleep(wait)

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self.timeout:g} s")
        return left

    def _gone(self, why: Exception | None) -> Disconnected:
        return Disconnected(
            f"the connection to {self._name} ended ({why or 'closed by the broker'})"
        )

    @property
    def _name(self) -> str:
        return f"{self._place[0]}:{self._place[1]}"


def _reason(code: int, topic: str) -> str:
    """Return what a refusal means. Devices are told a code alone; `topic` is what they named."""
    kind = type(refusal(code, ""))
    if kind is UnknownTopic and topic:
        return (
            f"the broker has no topic {topic!r}, or the topic has no such partition: "
            f"`weir topic create {topic}` makes it, `weir topic describe {topic}` shows it"
        )
    if kind is ErasedBoot:
        return (
            "the boot count is 0xFFFFFFFF, which erased flash reads as: store 1 in flash, and say "
            "hello with boot=1"
        )
    if kind is ProofNeeded:
        return "this hub belongs to a fleet: pass the secret of the device"
    if kind is NotAuthenticated:
        return (
            "the broker does not take this hub with this secret: `weir device show HUB` shows its "
            "generation, and whether it was revoked"
        )
    named = f" ({kind.__name__})" if kind is not Refused else ""
    about = f" about topic {topic!r}: check topic and partition" if topic else ""
    return f"the broker refused with code {code}{named}{about}"
