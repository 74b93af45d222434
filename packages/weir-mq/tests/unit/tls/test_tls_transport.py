"""The layer between bytes and protocol: cut anywhere, damaged anywhere, flooded, moved, held."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rigs.tls_wires import End, Heard, Wire, ends, shake
from weir.tls.files import ServerTls
from weir.tls.records import RECORD_BYTES, SILENT_BYTES_MAX

FUZZ = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def shaken(serving: ServerTls, client: ssl.SSLContext, begins: Any = None) -> tuple[End, End]:
    server, caller = ends(serving, client, begins)
    shake(server, caller)
    assert len(server.host.shook) == len(caller.host.shook) == 1
    return server, caller


@FUZZ
@given(
    st.lists(st.binary(min_size=1, max_size=40_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 5_000), min_size=1, max_size=20),
)
def test_what_one_writes_the_other_has_however_it_is_cut(
    serving: ServerTls, client: ssl.SSLContext, said: list[bytes], cuts: list[int]
) -> None:
    server, caller = ends(serving, client)
    n = 0
    waiting = {id(server): b"", id(caller): b""}
    pairs = [(caller, server), (server, caller)]
    is_said = False
    while True:
        for one, other in pairs:
            waiting[id(other)] += one.wire.take()
        if not any(waiting.values()):
            if is_said:
                break
            is_said = True
            for data in said:
                caller.tls.write(data)
                server.tls.writelines([data[:1], data[1:]])
            continue
        for _, other in pairs:
            if data := waiting[id(other)]:
                step = cuts[n % len(cuts)]
                n += 1
                waiting[id(other)] = data[step:]
                other.tls.data_received(data[:step])
    assert server.heard.data == caller.heard.data == b"".join(said)
    assert not server.is_over
    assert not caller.is_over
    assert server.host.bytes == caller.host.bytes == 0


@FUZZ
@given(st.integers(0, 1 << 16), st.integers(1, 255), st.booleans())
def test_a_damaged_byte_ends_a_connection_and_never_the_process(
    serving: ServerTls, client: ssl.SSLContext, at: int, flip: int, early: bool
) -> None:
    server, caller = ends(serving, client) if early else shaken(serving, client)
    sent = b"" if early else b"x" * 20_000
    caller.tls.write(sent)
    data = bytearray(caller.wire.take())
    data[at % len(data)] ^= flip
    server.tls.data_received(bytes(data))
    for _ in range(4):
        if down := server.wire.take():
            caller.tls.data_received(down)
        if up := caller.wire.take():
            server.tls.data_received(up)
    assert sent.startswith(server.heard.data)
    assert len(server.heard.data) < max(len(sent), 1)
    server.tls.connection_lost(None)
    assert server.host.bytes == 0
    assert server.heard.lost


@FUZZ
@given(st.binary(min_size=1, max_size=2_000))
def test_garbage_behind_the_first_byte_ends_it(serving: ServerTls, data: bytes) -> None:
    server = End(serving.context, is_server=True)
    server.tls.data_received(b"\x16" + data)
    server.tls.data_received(bytes(SILENT_BYTES_MAX))
    assert server.is_over
    assert server.heard.data == b""
    server.tls.data_received(b"\x16\x03\x01\x00\x05hello")  # what comes behind is nothing
    server.tls.connection_lost(None)
    assert server.host.bytes == 0


def test_all_of_a_read_is_handed_on_at_once(serving: ServerTls, client: ssl.SSLContext) -> None:
    server, caller = shaken(serving, client)
    for n in range(50):
        caller.tls.write(b"%03d" % n)
    caller.tls.write(bytes(10 * RECORD_BYTES))
    server.tls.data_received(caller.wire.take())
    assert server.heard.pieces == 1
    assert len(server.heard.data) == 150 + 10 * RECORD_BYTES


def test_a_record_that_is_not_whole_is_charged(serving: ServerTls, client: ssl.SSLContext) -> None:
    server, caller = shaken(serving, client)
    caller.tls.write(bytes(RECORD_BYTES))
    data = caller.wire.take()
    server.tls.data_received(data[:-1])
    assert server.host.bytes == len(data) - 1
    server.tls.data_received(data[-1:])
    assert server.host.bytes == 0
    assert len(server.heard.data) == RECORD_BYTES


class Counted:
    """TLS that notes what it is asked to read and write."""

    def __init__(self, tls: ssl.SSLObject, asked: list[tuple[str, int]]) -> None:
        self._tls, self._asked = tls, asked

    def read(self, size: int) -> bytes:
        self._asked.append(("read", size))
        return self._tls.read(size)

    def write(self, data: Any) -> int:
        self._asked.append(("write", len(data)))
        return self._tls.write(data)

    def __getattr__(self, name: str) -> Any:
        if name == "_sslobj":  # else what is asked would pass by here
            raise AttributeError(name)
        return getattr(self._tls, name)


def test_a_frame_costs_one_call_at_each_end_and_no_more_memory_than_it_takes(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    """A read of the size of the largest record takes 16 KiB, for a frame of 31 bytes."""
    asked: list[tuple[str, int]] = []

    def make(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> Any:
        return Counted(serving.context.wrap_bio(incoming, outgoing, server_side=True), asked)

    server, caller = End(serving.context, is_server=True, make=make), End(client, is_server=False)
    shake(server, caller)
    caller.tls.write(b"first")
    server.tls.data_received(caller.wire.take())
    server.host.kept = None  # type: ignore[assignment,method-assign]  # there is nothing to tell of
    asked.clear()
    caller.tls.write(bytes(31))
    frame = caller.wire.take()
    server.tls.data_received(frame)
    assert asked == [("read", len(frame))]
    asked.clear()
    server.tls.write(bytes(31))
    server.tls.writelines([bytes(9), bytes(22)])
    assert asked == [("write", 31), ("write", 31)]
    assert len(server.wire.take()) == 2 * len(frame)
    assert server.heard.data == b"first" + bytes(31)
    asked.clear()
    server.tls.write(bytes(2 * RECORD_BYTES + 1))
    assert [size for _, size in asked] == [RECORD_BYTES, RECORD_BYTES, 1], "each fits in a record"


def test_a_frame_passes_by_the_python_of_ssl(
    serving: ServerTls, client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, caller = shaken(serving, client)
    caller.tls.write(b"first")
    server.tls.data_received(caller.wire.take())
    monkeypatch.delattr(ssl.SSLObject, "read")
    monkeypatch.delattr(ssl.SSLObject, "write")
    caller.tls.write(b" and second")
    server.tls.data_received(caller.wire.take())
    assert server.heard.data == b"first and second"


@FUZZ
@given(st.integers(0, 1 << 16), st.integers(1, 255))
def test_a_damaged_record_alone_ends_a_connection(
    serving: ServerTls, client: ssl.SSLContext, at: int, flip: int
) -> None:
    server, caller = shaken(serving, client)
    caller.tls.write(b"before")
    server.tls.data_received(caller.wire.take())
    caller.tls.write(b"x" * 100)
    data = bytearray(caller.wire.take())
    data[5 + at % (len(data) - 5)] ^= flip
    server.tls.data_received(bytes(data))
    assert server.is_over
    assert server.heard.data == b"before"
    assert len(server.host.errors) == 1
    assert server.wire.take(), "the other side is told"
    server.tls.data_received(bytes(data))  # what comes behind is nothing
    assert server.host.bytes == 0
    assert len(server.host.errors) == 1


def test_an_end_that_comes_alone_is_heard(serving: ServerTls, client: ssl.SSLContext) -> None:
    """Also by who has said its own."""
    for says_first in (False, True):
        server, caller = shaken(serving, client)
        caller.tls.write(b"before")
        server.tls.data_received(caller.wire.take())
        if says_first:
            server.tls.write_eof()
        caller.tls.close()
        server.tls.data_received(caller.wire.take())
        assert server.heard.data == b"before"
        assert server.tls.is_closing()
        assert not server.host.errors


class Endless:
    """TLS that takes all that comes and never has data, as under a flood of key updates."""

    def __init__(self, incoming: ssl.MemoryBIO, _: ssl.MemoryBIO) -> None:
        self.incoming = incoming

    def do_handshake(self) -> None:
        self.incoming.read()

    def getpeercert(self) -> dict[str, Any]:
        return {}

    def read(self, _: int) -> bytes:
        self.incoming.read()
        raise ssl.SSLWantReadError

    def unwrap(self) -> None:
        raise ssl.SSLWantReadError


def test_64_kib_of_records_without_data_end_a_connection(serving: ServerTls) -> None:
    server = End(serving.context, is_server=True, make=Endless)
    update = b"\x17\x03\x03\x00\x16" + bytes(22)
    came = 0
    while not server.is_over:
        server.tls.data_received(update)
        came += len(update)
        assert came <= SILENT_BYTES_MAX + 2 * len(update)
    assert came > SILENT_BYTES_MAX
    assert "without a byte" in str(server.host.errors[0])


class Later(Endless):
    """It has data now and then, and something to say to each key update."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        super().__init__(incoming, outgoing)
        self.outgoing = outgoing

    def read(self, size: int) -> bytes:
        data = self.incoming.read()
        if data[5:7] == b"ok":
            return b"data"
        if data:
            self.outgoing.write(b"update")
        raise ssl.SSLWantReadError

    def selected_alpn_protocol(self) -> str:
        return "weir"


def test_key_updates_that_come_alone_are_answered_and_counted(serving: ServerTls) -> None:
    server = End(serving.context, is_server=True, make=Later)
    update, data = b"\x17\x03\x03\x00\x16" + bytes(22), b"\x17\x03\x03\x00\x16ok" + bytes(20)
    server.tls.data_received(data)
    server.tls.data_received(data)
    for came in range(len(update), SILENT_BYTES_MAX, len(update)):
        server.tls.data_received(update)
        assert server.wire.take() == b"update", came
    server.tls.data_received(data)  # a byte of data, and the count begins anew
    for _ in range(SILENT_BYTES_MAX // len(update)):
        server.tls.data_received(update)
    assert not server.is_over
    server.tls.data_received(update)
    server.tls.data_received(update)
    assert server.is_over
    assert "without a byte" in str(server.host.errors[0])


def test_a_handshake_waits_for_its_turn_and_reads_nothing(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    server, caller = ends(serving, client)
    server.host.allows = False
    hello = caller.wire.take()
    server.tls.data_received(hello)
    assert not server.wire.reading
    assert server.wire.take() == b""
    server.tls.resume_reading()  # the protocol above wants to read: that changes nothing
    assert not server.wire.reading
    server.host.waiting.pop().step()
    assert server.wire.reading
    caller.tls.data_received(server.wire.take())
    caller.tls.write(b"first")
    server.tls.data_received(caller.wire.take())
    assert server.heard.data == b""
    (one,) = server.host.waiting
    one.step()
    assert server.heard.data == b"first", "what came with the end of the handshake is not lost"
    one.step()
    assert server.host.bytes == 0


def test_more_that_comes_while_it_waits_is_kept_and_charged(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    server, caller = ends(serving, client)
    hello = caller.wire.take()
    server.host.allows = False
    server.tls.data_received(hello[:-10])
    server.tls.data_received(hello[-10:])
    assert server.host.bytes == len(hello)
    server.host.waiting.pop().step()
    server.host.allows = True
    assert server.host.bytes == 0
    caller.tls.data_received(server.wire.take())
    shake(server, caller)
    assert len(caller.host.shook) == 1


def test_the_first_plaintext_waits_until_the_connection_has_moved(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    first: list[bytes] = []

    def begins(one: Any, data: bytes) -> bool:
        first.append(data)
        return False

    server, caller = shaken(serving, client, begins)
    server.tls.set_write_buffer_limits(high=99)
    caller.tls.write(b"\x02 hello")
    server.tls.data_received(caller.wire.take())
    assert (first, server.heard.data) == ([b"\x02 hello"], b"")
    server.tls.pause_reading()
    caller.tls.write(b" more")
    server.tls.data_received(caller.wire.take())
    wire = Wire()
    server.tls.moved(wire)
    assert wire.high == 99
    server.tls.data_received(b"")
    caller.tls.write(b" and more")
    server.tls.data_received(caller.wire.take())
    assert server.heard.data == b"\x02 hello more and more"
    assert first == [b"\x02 hello"]
    server.tls.write(b"reply")
    caller.tls.data_received(wire.take())
    assert caller.heard.data == b"reply"
    assert server.host.bytes == 0


def test_the_first_plaintext_is_handed_on_once_it_has_moved_though_no_more_came(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    server, caller = shaken(serving, client, lambda one, data: False)
    caller.tls.write(b"first")
    server.tls.data_received(caller.wire.take())
    server.tls.moved(Wire())
    server.tls.data_received(b"")
    assert server.heard.data == b"first"
    caller.tls.write(b" and second")
    server.tls.data_received(caller.wire.take())
    assert server.heard.data == b"first and second"


def test_another_protocol_takes_a_connection_over(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    server, caller = shaken(serving, client)
    other = Heard()
    server.tls.set_protocol(other)
    caller.tls.write(b"for a link")
    server.tls.data_received(caller.wire.take())
    assert (other.data, server.heard.data) == (b"for a link", b"")


def test_an_end_is_said_before_it_comes(serving: ServerTls, client: ssl.SSLContext) -> None:
    server, caller = shaken(serving, client)
    caller.tls.write(b"last words")
    caller.tls.close()
    caller.tls.write(b"nobody hears this")
    server.tls.data_received(caller.wire.take())
    assert server.heard.data == b"last words"
    assert server.tls.is_closing()
    assert server.wire.end == "closed"


def test_a_direction_ends_alone(serving: ServerTls, client: ssl.SSLContext) -> None:
    server, _caller = shaken(serving, client)
    server.tls.write(b"why")
    server.tls.write_eof()
    assert server.wire.end == "eof"


def test_who_hangs_up_in_the_handshake_is_told_of(
    serving: ServerTls, client: ssl.SSLContext
) -> None:
    _server, caller = ends(serving, client)
    caller.tls.eof_received()
    caller.tls.connection_lost(None)
    assert "hung up" in str(caller.host.errors[0])
    assert caller.host.over == 1


def test_before_the_handshake_nothing_is_said_to_anybody(serving: ServerTls) -> None:
    server = End(serving.context, is_server=True)
    server.tls.write(b"secret")
    server.tls.writelines([b"secret"])
    assert server.wire.take() == b""
    server.tls.close()
    assert server.wire.end == "closed"


class Unending(Endless):
    """A handshake that wants more and more."""

    def do_handshake(self) -> None:
        self.incoming.read()
        raise ssl.SSLWantReadError


def test_a_handshake_without_end_ends_at_64_kib(serving: ServerTls) -> None:
    server = End(serving.context, is_server=True, make=Unending)
    came = 0
    while not server.is_over:
        server.tls.data_received(b"\x16\x03\x03\x00\x16" + bytes(22))
        came += 27
        assert came <= SILENT_BYTES_MAX + 60
    assert not server.host.shook


def test_who_has_closed_is_told_no_more(serving: ServerTls, client: ssl.SSLContext) -> None:
    """Neither of what comes as one record, nor of what comes with others."""
    for values in ((b"one",), (b"one", b"two")):
        server, caller = shaken(serving, client)
        caller.tls.write(b"before")
        server.tls.data_received(caller.wire.take())
        for one in values:
            caller.tls.write(one)
        server.tls.close()
        server.tls.data_received(caller.wire.take())
        assert server.heard.data == b"before"
