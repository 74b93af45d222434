"""Emulated networks on one machine: switches and proxies that delay, cut and count what passes.

`links` decides what becomes of each packet, by a clock that it is given. `switch` is the process
that carries packets between TUN devices as `links` says, `proxy` the one that carries bytes between
ports where nobody may make devices. `emulated` makes networks of places of both.
"""
