"""Many seeds of the rule of barriers: `python -m weir.bench.barriers --seeds 100` prints JSON.

What breaks is printed on stderr, with the seed that shows it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from weir.testing.barrier_explorer import Explorer


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore as many seeds as the command line says; 1 if something broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    wanted = parser.parse_args(arguments)
    began = time.perf_counter()
    promised = broken = committed = 0
    for seed in range(wanted.seed, wanted.seed + wanted.seeds):
        try:
            checks = Explorer(seed).explore()
        except AssertionError as error:
            broken += 1
            print(f"seed {seed}: {error}", file=sys.stderr)
            continue
        promised += checks.promised
        committed += checks.committed_through
    told = {
        "seeds": wanted.seeds,
        "broken": broken,
        "promised": promised,
        "committed": committed,
        "seconds": round(time.perf_counter() - began, 3),
    }
    print(json.dumps(told))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
