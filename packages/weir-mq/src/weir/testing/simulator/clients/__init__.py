"""Client processes of a world: an event loop of virtual time, its connections, and a database.

`process` is one life after the other, `loop` asyncio in virtual time, `threads` what blocks in it,
`connections` what it has of the network, and `database` SQLite that fails.
"""
