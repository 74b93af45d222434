"""The client library that applications import as `weir.connect` and `weir.sync`, by packages.

`core` decides and is pure. `arguments` reads what applications write. `connection` holds the
connections to a BrokerSet. `producer`, `reader` and `consumer` use it, and so do the modules beside
them: `scattering` and `sinks` publish atomically, `administration`, `access`, `nodes` and `schemas`
are for operators. `sync` is the blocking twin. This file imports nothing.
"""
