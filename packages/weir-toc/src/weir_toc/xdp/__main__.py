"""`python -m weir_toc.xdp pass DEVICE...`: let a host receive what a switch in the kernel sends."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weir_toc.errors import XdpError
from weir_toc.xdp.device import let_pass


def main(arguments: Sequence[str]) -> str | None:
    """Attach a program that passes all to these devices; return why that failed."""
    if len(arguments) < 2 or arguments[0] != "pass":
        return "usage: python -m weir_toc.xdp pass DEVICE..."
    try:
        for name in arguments[1:]:
            let_pass(name)
    except (XdpError, OSError) as error:
        return f"weir-toc: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
