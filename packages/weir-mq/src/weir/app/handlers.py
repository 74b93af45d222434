"""From a handler as users write it, and hooks round it, to one coroutine function.

Handlers that are plain functions get threads, which a program that ends does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weir.app.subscription import Hook, Subscription, call
from weir.client.connection.system import SYSTEM
from weir.model.message import Message

Call = tuple[asyncio.Future[Any], Callable[[Any], Any], Any]

log = logging.getLogger("weir.app")

Work = Callable[[Any], Awaitable[object]]


class Threads:
    """Up to `most` threads, started as they are needed, that calls are handed to."""

    def __init__(self, name: str, most: int) -> None:
        """Begin with none."""
        self._name = name
        self._most = most
        self._started = 0
        self._under_way = 0
        self._system = SYSTEM.get()
        self._calls = self._system.queue()

    async def run(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return what `call(argument)` does, or raise what it raises.

        Whoever is cancelled meanwhile goes on; the call cannot be, and its outcome is lost. Its
        thread ends with it, and another takes its place.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        if self._started < min(self._under_way, self._most):
            self._started += 1
            # `concurrent.futures` would wait for a call that hangs when the program ends.
            self._system.thread(self._work, self._name)
        self._calls.put((future, call, argument))
        try:
            return await future
        except asyncio.CancelledError:
            self._started -= future.cancelled()
            raise
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads, each when its call is over."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def _work(self) -> None:
        task: Call | None
        while (task := self._calls.get()) is not None:
            future, call, argument = task
            if future.cancelled():
                return
            try:
                outcome = partial(_settle, future, future.set_result, call(argument))
            except StopIteration as error:  # which no future takes
                failure = RuntimeError(f"the handler raised {error!r}")
                outcome = partial(_settle, future, future.set_exception, failure)
            except BaseException as error:
                outcome = partial(_settle, future, future.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop may have ended before the call
                future.get_loop().call_soon_threadsafe(outcome)
            if future.cancelled():
                return
            del task, future, call, argument, outcome  # what they hold is not kept while idle


def _settle(future: asyncio.Future[Any], how: Callable[[Any], None], what: Any) -> None:
    if not future.done():  # somebody still waits
        how(what)


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
        raise TypeError("the handler returned a generator, so nothing ran: do not use yield in it")


async def _quietly(hook: Hook, message: Message, error: BaseException | None) -> None:
    """Call a hook whose own failure changes nothing: the message was handled."""
    try:
        await call(hook, message, error)
    except Exception:
        log.exception("an after hook raised; the message's outcome is unchanged")
