"""Client processes of a world: an event loop of virtual time, its connections, and a database.

`loop` is asyncio in virtual time, `transport` a connection as asyncio has it, `sockets` what lies
below that, `machine` the network of one process, and `database` SQLite that fails.
"""
