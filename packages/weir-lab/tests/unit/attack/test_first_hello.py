"""What an attacker makes of the bytes that a node said on a link."""

from __future__ import annotations

from weir.protocol.link import Lane, LinkHello, encode_greeting
from weir_lab.attack.wire import first_hello

HELLO = LinkHello(1, 7, 0, 2, 0, 1, 1, 3, 1, Lane.QUICK, 1, 0, "127.0.0.1", 1, 5, 6, b"", bytes(16))


def test_the_hello_is_found_before_what_was_said_behind_it() -> None:
    said = encode_greeting(HELLO)
    assert first_hello(said + b"more") == (HELLO, said)


def test_what_is_cut_or_is_tls_has_none() -> None:
    assert first_hello(encode_greeting(HELLO)[:-1]) is None
    assert first_hello(bytes.fromhex("160301020001000201fc0303") + bytes(2_000)) is None
    assert first_hello(b"") is None
