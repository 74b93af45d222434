"""The API for firmware authors and tests: `weir.device.client.Client`, over a blocking socket.

`weir.device.Client` is the same class, and `weir.device.DeviceSecret` what is flashed into a device
of a fleet; both load on first use. `weir.device.pipeline` decides what
is sent again, without a socket; firmware can be written after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Client", "DeviceSecret"]

if TYPE_CHECKING:
    from weir.device.client import Client
    from weir.device.connection import DeviceSecret
else:

    def __getattr__(name: str) -> object:
        """Load a class on first use; AttributeError for any other name."""
        if name == "Client":
            from weir.device.client import Client

            return Client
        if name == "DeviceSecret":
            from weir.device.connection import DeviceSecret

            return DeviceSecret
        raise AttributeError(f"module 'weir.device' has no attribute {name!r}")
