"""Processes of the client as it ships: event loops of virtual time in a world, and their programs.

`loop` is asyncio in virtual time, `transport` a connection as asyncio has it, `sockets` what lies
below that, and `process` a process with all of these, which can lag, stand still and be killed.
"""
