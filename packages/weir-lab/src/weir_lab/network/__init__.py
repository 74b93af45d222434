"""Emulated networks on one machine: namespaces, and a switch that delays, loses and counts packets.

`links` decides what becomes of each packet, by a clock that it is given. `switch` is the process
that carries packets between TUN devices as `links` says. `emulated` makes such a network of places.
"""
