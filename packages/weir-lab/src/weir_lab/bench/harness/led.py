"""A process that another one leads over its pipes, as the process that is led.

stdin    a plan as one line of JSON, then orders, a line each; its end is the order to stop at once
stdout   reports, a line of JSON each; a `Failed` in place of any of them ends it
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from weir.errors import WeirError
from weir_lab.bench.harness.loop import run

P = TypeVar("P")

#: The orders that came, oldest first; the first one is to go.
Orders = asyncio.Queue[bytes]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """All is open; messages alone are made at this rate."""

    made_per_s: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Work ended early, and why."""

    error: str


def report(what: msgspec.Struct) -> None:
    """Tell the leader."""
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def be_led(
    plan_type: type[P], work: Callable[[P, Orders], Coroutine[Any, Any, msgspec.Struct]]
) -> None:
    """Be the whole life of a led process: `work` takes the plan; what it returns is reported."""
    code = 1
    try:
        report(run(_work(plan_type, work)))
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        # The follower still waits for stdin and holds its lock: a normal exit would stumble over it
        sys.stderr.flush()
        os._exit(code)


async def _work(
    plan_type: type[P], work: Callable[[P, Orders], Coroutine[Any, Any, msgspec.Struct]]
) -> msgspec.Struct:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=plan_type)
    orders = Orders()
    follower = threading.Thread(
        target=_follow, args=(asyncio.get_running_loop(), orders), name="weir-follow", daemon=True
    )
    follower.start()
    try:
        return await work(plan, orders)
    except TimeoutError as error:
        return Failed(str(error) or "not everything was confirmed in time")
    except (WeirError, OSError) as error:
        return Failed(str(error))


def _follow(loop: asyncio.AbstractEventLoop, orders: Orders) -> None:
    """Pass on the orders; end with the process that leads this one."""
    while line := sys.stdin.buffer.readline():
        loop.call_soon_threadsafe(orders.put_nowait, line)
    os._exit(1)
