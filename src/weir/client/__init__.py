"""What applications import: an async client (`weir.client.connect`) and a blocking one.

Import what you use by its own name; this file imports nothing. What decides (session, sequencer,
batching, acks, duration, backoff, url) is pure; connection, link, lane, producer, reader and
consumer are its asyncio shell.
"""
