"""The asyncio host: real sockets, disk and time. It decides nothing; `weir.broker` does."""
