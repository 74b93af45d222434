"""How fast workers of one process take a topic that they share, and ack all of it.

A topic is filled before, and all workers are connected. The time is from the moment at which they
ask for their first messages to the moment at which the broker knows the last ack. Each message is
noted as it comes and checked afterwards; workers share messages, so that their order says nothing.

That it knows the last ack is what each broker says itself:

* weir by how far the cluster is, of which a majority knows;
* Redis by the reply of each XACK, which with `always` comes after the sync;
* NATS by the reply to the last ack of each connection, which is sent again for that;
* RabbitMQ by the reply to a purge behind the acks of each channel, when there is nothing left to
  purge: a quorum queue writes it to its log behind them;
* ActiveMQ by the receipt of an UNSUBSCRIBE behind the acks of each connection.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from weir_lab.bench.flow import Cpu, FlowFailed, Meter, bottleneck, shared_out
from weir_lab.bench.sides.side import Side
from weir_lab.bench.sides.working import Taken, unless

WORKERS_MAX = 256
#: So many producers fill a topic.
_PRODUCERS = 4


class Work(msgspec.Struct, frozen=True):
    """What came of it. `filled_per_s` is how fast the topic was filled; processor time in µs is of
    each message, of the one process of all workers and of the broker.
    """

    workers: int
    messages: int
    size: int
    seconds: float
    messages_per_s: float
    filled_per_s: float
    lost: int
    repeated: int
    corrupt: int
    cpu_s: Cpu
    bottleneck: str
    client_us: float
    server_us: float | None
    foreign_cores: float | None

    @property
    def clean(self) -> bool:
        """Whether each message was taken exactly once, unchanged."""
        return not (self.lost or self.repeated or self.corrupt)


async def share(
    side: Side, topic: str, workers: int, messages: int, size: int, deadline_s: float
) -> Work:
    """Fill a topic, and let workers take all of it.

    Raises `FlowFailed` for what does not end within `deadline_s`, and what the sides raise.
    """
    await side.share(topic)
    counts = shared_out(messages, min(_PRODUCERS, messages))
    async with side.crew(topic, counts, size, deadline_s) as crew:
        await crew.ready()
        crew.go()
        done = await crew.done()
    filling_ns = max(d.last_confirm_ns for d in done) - min(d.first_send_ns for d in done)
    taken = Taken(messages)
    async with side.workers(topic, size, workers, taken) as working:
        meter, began = Meter(side), time.monotonic()
        working.begin()
        try:
            async with asyncio.timeout(deadline_s):
                await unless(working.failed(), taken.complete.wait())
                await unless(working.failed(), working.finish())
        except TimeoutError:
            side.running()
            known = "but not all acks were known" if taken.complete.is_set() else "which is not all"
            raise FlowFailed(
                f"workers of {side.label} took {taken.received:,} of {messages:,} messages within "
                f"{deadline_s:g} s, {known}: give a longer --deadline, or fewer messages"
            ) from None
        seconds, cpu = time.monotonic() - began, meter.read([])
    checker = taken.check(counts, size)
    return Work(
        workers,
        messages,
        size,
        seconds,
        messages / seconds,
        messages / (filling_ns / 1e9),
        checker.lost,
        checker.repeated,
        checker.corrupt,
        cpu,
        bottleneck(side.one_thread, cpu, seconds, 0.0),
        cpu.consumer / messages * 1e6,
        None if cpu.server is None else cpu.server / messages * 1e6,
        None if cpu.foreign is None else cpu.foreign / seconds,
    )
