"""The ports of a node of several shards."""

from __future__ import annotations

import errno
import socket

import pytest

from weir.server.network.addresses import reserved


def shared(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    return one


def test_shards_may_listen_on_what_is_reserved_and_nobody_else() -> None:
    with reserved("127.0.0.1", 0, 2) as ports:
        assert len({ports.shared, *ports.own}) == 3
        for port in (ports.shared, *ports.own):
            with shared(port) as one, shared(port) as two:
                one.listen()
                two.listen()
                socket.create_connection((ports.host, port), 5).close()
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", port))


def test_a_reserved_port_that_nobody_listens_on_refuses() -> None:
    with reserved("127.0.0.1", 0, 1) as ports, pytest.raises(ConnectionRefusedError):
        socket.create_connection((ports.host, ports.own[0]), 5)


def test_two_nodes_do_not_slip_into_each_others_port() -> None:
    with reserved("127.0.0.1", 0, 1) as ports, shared(ports.shared) as shard:
        shard.listen()
        with (
            pytest.raises(OSError, match="in use") as refused,
            reserved("127.0.0.1", ports.shared, 1),
        ):
            pass
    assert refused.value.errno == errno.EADDRINUSE


def test_they_are_free_again_afterwards() -> None:
    with reserved("localhost", 0, 1) as ports:
        pass
    with reserved("localhost", ports.shared, 1) as again:
        assert again.shared == ports.shared
