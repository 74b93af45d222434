"""The sockets of a node: addresses, listening, and connections on asyncio."""
