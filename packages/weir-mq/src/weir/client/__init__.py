"""What applications import as `weir.connect` and `weir.sync`, by rooms.

`core` decides and is pure. `arguments` reads what applications write. `connection` holds the
connections to a BrokerSet; `producer`, `reader`, `consumer` and `admin` use it. `sync` is the
blocking twin. This file imports nothing.
"""
