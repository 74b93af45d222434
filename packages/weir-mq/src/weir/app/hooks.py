"""From a handler as users write it, and hooks round it, to one coroutine function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from weir.app.subscription import Hook, Subscription, call
from weir.app.threads import Threads
from weir.model.message import Message

log = logging.getLogger("weir.app")

Work = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What an application wants to be called, in the order in which it said so."""

    before: list[Hook] = field(default_factory=list)
    after: list[Hook] = field(default_factory=list)
    on_start: list[Hook] = field(default_factory=list)
    on_stop: list[Hook] = field(default_factory=list)


def work_of(subscription: Subscription, hooks: Hooks, threads: Threads) -> Work:
    """Return what handles a message, or a list of them: the handler alone, if that is all."""
    handler: Any = subscription.handler

    async def in_thread(given: Any) -> None:
        outcome = await threads.run(handler, given)
        if outcome is not None:
            await _come_true(outcome)

    work: Work = handler if subscription.awaited else in_thread
    if not hooks.before and not hooks.after:
        return work

    async def hooked(given: Any) -> None:
        messages: list[Message] = given if subscription.batch else [given]
        error: BaseException | None = None
        try:
            for message in messages:
                for hook in hooks.before:
                    await call(hook, message)
            await work(given)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for message in messages:
                for hook in hooks.after:
                    await _quietly(hook, message, error)
            del error  # it holds this frame, and this frame held it

    return hooked


async def _come_true(outcome: object) -> None:
    """Let that happen which a plain function has only promised, as a lambda of a coroutine function
    does: else its message would be acked, and nothing done. Raises `TypeError` for a generator.
    """
    if inspect.isawaitable(outcome):
        await outcome
    elif inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise TypeError("the handler returned a generator, of which nothing ran: let it not yield")


async def _quietly(hook: Hook, message: Message, error: BaseException | None) -> None:
    """Call a hook whose own failure changes nothing: the message was handled."""
    try:
        await call(hook, message, error)
    except Exception:
        log.exception("a hook after a message raised; the message's outcome stays what it was")
