"""A device over a blocking socket (seed 001's frame; DESIGN §4 Device frame)."""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from types import TracebackType

from weir.device.pipeline import Pipeline, Publish
from weir.errors import (
    BadChecksum,
    BadRequest,
    Disconnected,
    Overloaded,
    RemoteProtocolError,
    refusal,
)
from weir.model.columns import NO_SEQUENCE
from weir.model.limits import DEVICE_BODY_BYTES_MAX, DEVICE_WINDOW
from weir.wire import device as wire
from weir.wire.device import BY_HUB, DeviceOpcode, DeviceReply

SEQUENCE_BYTES = 4
RETRY_FIRST = 0.05
RETRY_MOST = 2.0
_READ = 1 << 16
_SN_MAX = 255


class Client:
    """A hub with its locks: `sn` is the lock behind it, and each has its own sequence.

    `boot` must rise whenever the sequences begin anew. Every call ends within `timeout` seconds, or
    raises `Disconnected`; `random` spreads the waits of many devices that lost the same broker.
    """

    def __init__(
        self,
        host: str,
        port: int,
        hub: int,
        boot: int,
        topic: str,
        partition: int = BY_HUB,
        *,
        timeout: float = 10.0,
        random: Random | None = None,
    ) -> None:
        """Connect and say hello. Raises `Disconnected`, or what the broker refused hello with."""
        self._place = (host, port)
        self._hello = wire.hello(hub, boot, topic, partition)
        self._timeout = timeout
        self._random = random or Random()
        #: By lock: the next sequence.
        self._next: dict[int, int] = {}
        #: What is not confirmed, in order.
        self._held: list[Publish] = []
        self._socket: socket.socket | None = None
        self._replies = wire.DeviceReplies()
        self._unread: deque[DeviceReply] = deque()
        self._connect(time.monotonic() + timeout)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def ping(self) -> None:
        """Return when the broker has answered."""
        self._ask(wire.frame(DeviceOpcode.PING, 0, b""), again=True)

    def publish(self, value: bytes, sn: int = 0) -> DeviceReply:
        """Send one message without a sequence; return its confirm.

        Sent again only if the broker says that it did not take it. If the connection ends first,
        raises `Disconnected`: it may or may not have happened. `publish_sequenced` leaves no doubt.
        """
        return self._ask(wire.publish(sn, value), again=False)

    def publish_sequenced(self, value: bytes, sn: int = 0) -> DeviceReply:
        """Send one message under the lock's next sequence, again until confirmed: exactly once."""
        return self.send_many([value], sn, window=1)[0]

    def send_many(
        self,
        values: Sequence[bytes],
        sn: int | Sequence[int] = 0,
        window: int = DEVICE_WINDOW,
    ) -> list[DeviceReply]:
        """Send values in order, each under its lock's next sequence; return the confirms.

        `sn` is the lock of all values, or names one for each. At most `window` of a lock are under
        way, and 8 at most: of so many values the broker can tell a repeat from another value.

        Connects and sends again as often as it takes; raises `Disconnected` after `timeout` seconds
        without any confirm. What is not confirmed then is kept and goes out, under the same
        sequences, before the values of the next call. What the broker refused for good is dropped,
        with all that is held of that lock, and raised.
        """
        sns = [sn] * len(values) if isinstance(sn, int) else sn
        most = DEVICE_BODY_BYTES_MAX - SEQUENCE_BYTES
        if len(sns) != len(values):
            raise BadRequest(f"{len(sns)} locks for {len(values)} values: give one for each")
        if any(not isinstance(value, bytes) for value in values):
            raise BadRequest("a device sends bytes: encode other values first")
        if any(not 0 <= lock <= _SN_MAX for lock in sns):
            raise BadRequest(f"sn is the number of a lock behind the hub: 0 to {_SN_MAX}", _SN_MAX)
        if any(len(value) > most for value in values):
            raise BadRequest(f"a value is over {most:,} bytes: send it in parts", most)
        if any(self._next.get(lock, 0) + n > NO_SEQUENCE for lock, n in Counter(sns).items()):
            raise BadRequest("this boot's sequences are used up: connect with a higher boot count")
        held = self._held
        publishes = held + [self._publish(lock, v) for lock, v in zip(sns, values, strict=True)]
        pipeline = Pipeline(publishes, max(1, min(window, DEVICE_WINDOW)))
        try:
            self._run(pipeline)
        except BaseException:
            self.close()  # replies may be under way that nobody waits for
            raise
        finally:
            replies = zip(publishes, pipeline.replies, strict=True)
            self._held = [publish for publish, reply in replies if reply is None]
            if pipeline.refused is not None:
                self._drop(pipeline.refused)
        return [reply for reply in pipeline.replies[len(held) :] if reply is not None]

    def _drop(self, sn: int) -> None:
        """Forget what is held of a lock that was refused; the others go on."""
        dropped = [publish.sequence for publish in self._held if publish.sn == sn]
        self._held = [publish for publish in self._held if publish.sn != sn]
        self._next[sn] = min(dropped, default=self._next[sn])

    def _publish(self, sn: int, value: bytes) -> Publish:
        sequence = self._next.get(sn, 0)
        self._next[sn] = sequence + 1
        return Publish(sn, sequence, value)

    def _run(self, pipeline: Pipeline) -> None:
        deadline = time.monotonic() + self._timeout
        attempt = 0
        while not pipeline.done:
            try:
                if self._turn(pipeline, deadline):
                    deadline, attempt = time.monotonic() + self._timeout, 0
                if (trouble := pipeline.rewind()) is not None:
                    attempt += 1
                    # Bytes that changed on the way go out again at once, the first time.
                    if attempt > 1 or not isinstance(trouble, BadChecksum):
                        self._pause(attempt, deadline, trouble)
            except Disconnected as error:
                self.close()
                pipeline.lost()
                attempt += 1
                self._pause(attempt, deadline, error)

    def _turn(self, pipeline: Pipeline, deadline: float) -> bool:
        """Send what may go out, take the replies that are there; tell whether one confirmed."""
        self._connect(deadline)
        frames = [wire.publish(p.sn, p.value, p.sequence) for p in pipeline.to_send()]
        if frames:
            self._write(b"".join(frames), deadline)
        confirmed = False
        self._fill(deadline)
        while self._unread:
            reply = self._unread.popleft()
            if reply.opcode == DeviceOpcode.PUBLISH_SEQUENCED:
                confirmed |= pipeline.answered(reply)
            else:
                # Its opcode changed on the way, so the broker answered another one.
                pipeline.answered(DeviceReply(reply.opcode, reply.sn, BadChecksum.code))
        return confirmed

    def _ask(self, frame: bytes, *, again: bool) -> DeviceReply:
        """Send one frame and return its reply; over a new connection if it may be sent `again`."""
        deadline = time.monotonic() + self._timeout
        attempt = 0
        while True:
            try:
                self._connect(deadline)
                self._write(frame, deadline)
                self._fill(deadline)
            except Disconnected as error:
                self.close()
                if not again:
                    raise
                attempt += 1
                self._pause(attempt, deadline, error)
                continue
            reply = self._unread.popleft()
            if reply.code == 0:
                return reply
            refused = refusal(
                reply.code, f"the broker refused with code {reply.code}", reply.offset
            )
            if not refused.retryable:
                raise refused
            attempt += 1
            self._pause(attempt, deadline, refused)

    def _connect(self, deadline: float) -> None:
        """Connect and say hello, unless that is done; try again until the deadline."""
        attempt = 0
        while self._socket is None:
            try:
                self._dial(deadline)
            except (OSError, Disconnected) as error:
                self.close()
                attempt += 1
                self._pause(attempt, deadline, error)

    def _dial(self, deadline: float) -> None:
        self._socket = socket.create_connection(self._place, self._left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = wire.DeviceReplies()
        self._unread.clear()
        self._write(self._hello, deadline)
        self._fill(deadline)
        welcome = self._unread.popleft()
        if welcome.code == 0:
            return
        self.close()
        error = refusal(
            welcome.code,
            f"the broker refused the hub with code {welcome.code}: check topic and partition",
        )
        if not error.retryable:
            raise error
        raise Disconnected(str(error))

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._socket is not None
        try:
            self._socket.settimeout(self._left(deadline))
            self._socket.sendall(data)
        except OSError as error:
            raise self._gone(error) from error

    def _fill(self, deadline: float) -> None:
        """Wait for at least one reply."""
        assert self._socket is not None
        while not self._unread:
            try:
                self._socket.settimeout(self._left(deadline))
                data = self._socket.recv(_READ)
                if not data:
                    raise self._gone(None)
                self._unread.extend(self._replies.receive(data))
            except OSError as error:
                raise self._gone(error) from error
            except RemoteProtocolError as error:
                # The stream is out of step; a new connection begins a new one.
                raise self._gone(error) from error

    def _pause(self, attempt: int, deadline: float, why: Exception) -> None:
        wait = self._random.random() * min(RETRY_MOST, RETRY_FIRST * 2 ** min(attempt, 16))
        if isinstance(why, Overloaded):
            wait += why.detail / 1_000
        if time.monotonic() + wait >= deadline:
            self.close()
            raise Disconnected(
                f"nothing confirmed by {self._name} within {self._timeout:g} s ({why}): check that "
                "a broker runs there, its host and port"
            ) from why
        time.sleep(wait)

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._timeout:g} s")
        return left

    def _gone(self, why: Exception | None) -> Disconnected:
        return Disconnected(
            f"the connection to {self._name} ended ({why or 'closed by the broker'})"
        )

    @property
    def _name(self) -> str:
        return f"{self._place[0]}:{self._place[1]}"
