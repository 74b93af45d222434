"""What firmware authors and tests import: `weir.device.client.Client`, over a blocking socket.

`weir.device.Client` is the same class; it loads on first use. `weir.device.pipeline` decides what
is sent again, without a socket; firmware can be written after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Client"]

if TYPE_CHECKING:
    from weir.device.client import Client
else:

    def __getattr__(name: str) -> object:
        """Load `Client` on first use; AttributeError for any other name."""
        if name == "Client":
            from weir.device.client import Client

            return Client
        raise AttributeError(f"module 'weir.device' has no attribute {name!r}")
