"""What applications import: an async client (`weir.client.connect`) and its blocking twin
(`weir.client.sync`); `weir.client.blocking` is a bare connection for worker processes.

Import what you use by its own name; this file imports nothing. What decides (session, sequencer,
batching, acks, picking, duration, backoff, url) is pure; connection, link, lane, producer, reader
and consumer are its asyncio shell.
"""
