"""Real time behind the port `weir.order.clock.Time`."""

from __future__ import annotations

import time


class SystemTime:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since whenever; never falls."""
        return time.monotonic_ns() // 1_000_000
