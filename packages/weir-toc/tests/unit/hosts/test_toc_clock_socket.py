"""Clocks that are compared by datagrams: exact also where a program is late, and nothing forged."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from time import monotonic_ns

import pytest

from weir_toc.clock import Clock
from weir_toc.hosts import clock_socket
from weir_toc.hosts.clock_socket import ClockAnswers, ClockQuestions
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.frames import framed_json

_TERM, _AHEAD = 7, 123_456_789_000
_MS = 1_000_000
Body = Callable[[socket.socket], Awaitable[None]]


def now() -> int:
    """The time of the leader in these tests."""
    return monotonic_ns() + _AHEAD


def with_listening(body: Body) -> None:
    """Run a body with a TCP socket whose port is free for datagrams."""

    async def run() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
            listening.bind(("127.0.0.1", 0))
            await asyncio.wait_for(body(listening), 20)

    asyncio.run(run())


async def until(clock: Clock) -> int:
    """Wait until a clock was compared; return how far it may be wrong now."""
    while (bound := clock.error_bound(monotonic_ns())) is None:
        await asyncio.sleep(0.001)
    return bound


def test_waiting_for_a_busy_program_is_no_part_of_the_round_trip() -> None:
    async def body(listening: socket.socket) -> None:
        answers = ClockAnswers(listening, now, lambda: _TERM)
        bound = 1_000 * _MS
        while bound >= 40 * _MS:  # a kernel begins to stamp some time after it was asked to
            clock = Clock(monotonic_ns())
            questions = ClockQuestions(listening.getsockname(), _TERM, clock, monotonic_ns)
            questions.ask()
            time.sleep(0.1)  # the question lies at the leader
            await asyncio.sleep(0)
            time.sleep(0.1)  # the answer lies at the node
            bound = await until(clock)
            raw = monotonic_ns()
            assert abs(clock.read(raw) - raw - _AHEAD) <= bound
            questions.close()
        answers.close()

    with_listening(body)


@pytest.mark.parametrize(
    ("magic", "nonce", "term", "more"),
    [
        (b"weir-mq!", 0, _TERM, b""),
        (b"weir-toc", 1, _TERM, b""),
        (b"weir-toc", 0, _TERM - 1, b""),
        (b"weir-toc", 0, _TERM, b"!"),
    ],
)
def test_an_answer_to_another_question_is_not_taken(
    magic: bytes, nonce: int, term: int, more: bytes
) -> None:
    async def body(_: socket.socket) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as leader:
            leader.bind(("127.0.0.1", 0))
            clock = Clock(monotonic_ns())
            questions = ClockQuestions(leader.getsockname(), _TERM, clock, monotonic_ns)
            questions.ask()
            question, node = leader.recvfrom(100)
            asked = struct.unpack("!8sQQQQ", question)[1]

            def answer(*fields: int | bytes) -> bytes:
                return struct.pack("!8sQQQQ", *fields)

            leader.sendto(b"", node)
            leader.sendto(answer(magic, asked + nonce, term, now(), now()) + more, node)
            await asyncio.sleep(0.05)
            assert clock.error_bound(monotonic_ns()) is None
            right = answer(b"weir-toc", asked, _TERM, now(), now())
            leader.sendto(right, node)
            await until(clock)
            before = clock.read(monotonic_ns())
            leader.sendto(answer(b"weir-toc", asked, _TERM, 0, 0), node)  # the same one again
            await asyncio.sleep(0.05)
            assert clock.read(monotonic_ns()) - before < 10_000 * _MS
            questions.close()

    with_listening(body)


def test_a_member_answers_only_whole_questions_and_only_while_it_leads() -> None:
    leading = [0]

    async def body(listening: socket.socket) -> None:
        answers = ClockAnswers(listening, now, lambda: leading[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
            node.connect(listening.getsockname())
            node.settimeout(0)
            question = struct.pack("!8sQQQQ", b"weir-toc", 5, 0, 0, 0)

            async def answered(data: bytes) -> bytes:
                node.send(data)
                await asyncio.sleep(0.05)
                try:
                    return node.recv(100)
                except BlockingIOError:
                    return b""

            assert await answered(question) == b""
            leading[0] = _TERM
            for wrong in (b"", question[:-1], question + b"!", b"weir-mq!" + question[8:]):
                assert await answered(wrong) == b""
            found = struct.unpack("!8sQQQQ", await answered(question))
            assert found[:3] == (b"weir-toc", 5, _TERM)
            assert 0 <= found[4] - found[3] < 1_000 * _MS
            assert abs(found[4] - now()) < 5_000 * _MS
        answers.close()

    with_listening(body)


def test_old_questions_give_way_to_new_ones() -> None:
    async def body(_: socket.socket) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as leader:
            leader.bind(("127.0.0.1", 0))
            clock = Clock(monotonic_ns())
            questions = ClockQuestions(leader.getsockname(), _TERM, clock, monotonic_ns)
            for _ in range(9):
                questions.ask()
            asked = []
            for _ in range(9):
                question, node = leader.recvfrom(100)
                asked.append(struct.unpack("!8sQQQQ", question)[1])
            leader.sendto(struct.pack("!8sQQQQ", b"weir-toc", asked[0], _TERM, 1, 1), node)
            await asyncio.sleep(0.05)
            assert clock.error_bound(monotonic_ns()) is None
            leader.sendto(struct.pack("!8sQQQQ", b"weir-toc", asked[1], _TERM, 1, 1), node)
            await until(clock)
            questions.close()

    with_listening(body)


def test_a_node_that_is_welcome_compares_its_clock_by_datagrams() -> None:
    async def body(listening: socket.socket) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(framed_json({"op": "welcome", "term": _TERM}))
            while await reader.read(1_000):
                pass
            writer.close()
            ended.set()

        ended = asyncio.Event()

        answers = ClockAnswers(listening, now, lambda: _TERM)
        server = await asyncio.start_server(accept, sock=listening)
        link = ControlLink([listening.getsockname()], {"op": "hello", "kind": "member"})
        running = asyncio.create_task(link.run())
        await until(link.clock)
        assert abs(link.now() - now()) < 1_000 * _MS
        running.cancel()
        await asyncio.wait((running,))
        await ended.wait()
        answers.close()
        server.close()

    with_listening(body)


def test_a_port_that_is_taken_is_told() -> None:
    async def body(listening: socket.socket) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(listening.getsockname())
            with pytest.raises(OSError, match="in use"):
                ClockAnswers(listening, now, lambda: _TERM)

    with_listening(body)


class Failing:
    """A socket whose datagrams cannot be read."""

    def __init__(self, number: int) -> None:
        self._inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inner.setblocking(False)
        self.number = number
        self.reads = self.sends = 0

    def fileno(self) -> int:
        return self._inner.fileno()

    def bind(self, address: tuple[str, int]) -> None:
        self._inner.bind(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"", address)  # from now on there is something to read

    def connect(self, address: tuple[str, int]) -> None:
        self.bind(("127.0.0.1", address[1]))

    def send(self, data: bytes) -> int:
        self.sends += 1
        return len(data)

    def recvmsg(self, *_: int) -> object:
        self.reads += 1
        raise OSError(self.number, os.strerror(self.number))

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN, errno.EAGAIN, errno.EINTR,
                                    errno.ECONNREFUSED])  # fmt: skip
def test_a_socket_that_fails_is_told_of_once_and_read_no_more(
    monkeypatch: pytest.MonkeyPatch, is_leader: bool, number: int
) -> None:
    failing, told = Failing(number), []

    async def body(listening: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about))
        monkeypatch.setattr(clock_socket, "_opened", lambda _: failing)
        address = listening.getsockname()
        one = (ClockAnswers(listening, now, lambda: _TERM) if is_leader else
               ClockQuestions(address, _TERM, Clock(monotonic_ns()), monotonic_ns))  # fmt: skip
        until_read = time.monotonic() + 10
        while failing.reads == 0 and time.monotonic() < until_read:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        if isinstance(one, ClockQuestions):
            one.ask()
        one.close()

    with_listening(body)
    if number in (errno.EIO, errno.ENOTCONN):
        assert (failing.reads, failing.sends) == (1, 0)
        ((message, error),) = ((one["message"], one["exception"]) for one in told)
        assert "compared over control connections alone" in message
        assert error.errno == number
    else:
        assert failing.reads > 1  # it goes on
        assert failing.sends == (not is_leader)
        assert not told
