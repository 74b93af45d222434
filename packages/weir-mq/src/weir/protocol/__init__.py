"""Dialects as state machines: bytes in, requests out; replies in, bytes out. No sockets here.

Import a dialect by its own name (`weir.protocol.client.codec`, `weir.protocol.device`): this
file imports none, so that a client does not load the broker's side.
"""
