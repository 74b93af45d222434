"""An airport: replays its flights in event-time order, and keeps a ledger of what it sent.

JFK and LGA send batches with the client; EWR is a hub that speaks the device dialect. The first
flights go out at a fixed rate, for latencies that are not those of a queue; the others as fast as
the broker confirms them. The weather of an hour is told, and confirmed, before the flights of that
hour are sent: what reads both topics up to a barrier has the weather of each flight it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np

from weir.client.client import connect
from weir.client.producer.receipts import BatchReceipt
from weir.device.client import Client as Device
from weir_lab.demo import flights
from weir_lab.demo.flights import DEVICE_ORIGIN, ORIGINS, TOPIC, Flights
from weir_lab.demo.ledger import Sent
from weir_lab.demo.processes.worker import Stage, now_us, work
from weir_lab.demo.tasks import FULL_SPEED, PACED_PER_SECOND, AirportTask, paced_count
from weir_lab.demo.weather import observations
from weir_lab.demo.weather.observations import Weather

CHUNK = 1_000
#: The locks behind the hub that EWR is: each has its own sequence and its own few frames under way.
GATES = 128
#: EWR's two hubs: the airport itself, and its weather station.
HUB, STATION = 1, 2


def _ticks(count: int) -> Iterator[tuple[int, float]]:
    """Yield 0 to `count` - 1 and the seconds to wait before each, for a fixed rate."""
    begun = time.monotonic()
    for number in range(count):
        yield number, max(begun + number / PACED_PER_SECOND - time.monotonic(), 0.0)


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield (first, behind the last) of what goes out as fast as it can."""
    for first in range(paced_count(count), count, CHUNK):
        yield first, min(first + CHUNK, count)


async def replay_batches(
    task: AirportTask, loaded: Flights, weather: Weather, sent: Sent, stage: Stage
) -> None:
    """Send with the client: batches of many flights, key = carrier, tag = airport."""

    def on_confirm(batch: BatchReceipt) -> None:
        # The only producer of this partition, so its sequence is the flight's number.
        offsets = range(batch.offset, batch.offset + batch.count)
        sent.confirm(batch.first_sequence, offsets, now_us())

    partition, count = ORIGINS.index(task.origin), len(loaded)
    async with (
        connect(f"weir://{task.host}:{task.port}", name=f"airport-{task.origin}") as client,
        client.producer(TOPIC, linger=0, partition=partition, on_confirm=on_confirm) as producer,
        client.producer(observations.TOPIC, linger=0, partition=partition) as station,
    ):
        told = 0

        async def observe(until: int) -> None:
            # What this client has had confirmed has a lower stamp than what it sends next.
            nonlocal told
            if (behind := weather.told_by(until)) > told:
                await station.send_many(
                    weather.values[told:behind], times=weather.times[told:behind]
                )
                await station.flush()
                told = behind

        for number, wait in _ticks(paced_count(count)):
            await asyncio.sleep(wait)
            await observe(loaded.times[number])
            now = now_us()
            (value,) = flights.seal(loaded.heads[number : number + 1], now)
            sent.send(number, [value], now)
            carrier, due = loaded.carriers[number], loaded.times[number]
            producer.send(value, key=carrier, tag=task.origin, time=due)
            stage.tell_now_and_then("at a fixed rate", number + 1, count)
        await producer.flush()
        stage.tell(FULL_SPEED, paced_count(count), count)
        for first, behind in _chunks(count):
            await observe(loaded.times[behind - 1])
            now = now_us()
            values = flights.seal(loaded.heads[first:behind], now)
            sent.send(first, values, now)
            await producer.send_many(
                values,
                keys=loaded.carriers[first:behind],
                tags=[task.origin] * len(values),
                times=loaded.times[first:behind],
            )
            stage.tell_now_and_then(FULL_SPEED, behind, count)
        await observe(loaded.until)


def replay_frames(
    task: AirportTask, loaded: Flights, weather: Weather, sent: Sent, stage: Stage
) -> None:
    """Send as a device does: a frame a flight, each with its sequence, many under way at once."""
    partition, count = ORIGINS.index(task.origin), len(loaded)

    def connected(hub: int, topic: str) -> Device:
        return Device(task.host, task.port, hub=hub, boot=1, topic=topic, partition=partition)

    with connected(HUB, TOPIC) as device, connected(STATION, observations.TOPIC) as station:
        told = 0

        def observe(until: int) -> None:
            # One node, one clock: what it confirmed has a lower stamp than what it takes later.
            nonlocal told
            if (behind := weather.told_by(until)) > told:
                values = weather.values[told:behind]
                station.send_many(values, [number % GATES for number in range(len(values))])
                told = behind

        def send(first: int, behind: int) -> None:
            now = now_us()
            values = flights.seal(loaded.heads[first:behind], now)
            sent.send(first, values, now)
            gates = [number % GATES for number in range(first, behind)]
            replies = device.send_many(values, gates)
            sent.confirm(first, [reply.offset for reply in replies], now_us())

        for number, wait in _ticks(paced_count(count)):
            time.sleep(wait)
            observe(loaded.times[number])
            send(number, number + 1)
            stage.tell_now_and_then("at a fixed rate", number + 1, count)
        stage.tell(FULL_SPEED, paced_count(count), count)
        for first, behind in _chunks(count):
            observe(loaded.times[behind - 1])
            send(first, behind)
            stage.tell_now_and_then(FULL_SPEED, behind, count)
        observe(loaded.until)


def replay(task: AirportTask, stage: Stage) -> None:
    """Load the flights, wait for the cue, send them all, write the ledger."""
    stage.tell("loads its flights")
    loaded = flights.load(task.origin, task.limit)
    weather = observations.load(task.origin, loaded.until)
    sent = Sent.blank(len(loaded))
    stage.tell("waits", of=len(loaded))
    stage.wait_for_cue()
    if task.origin == DEVICE_ORIGIN:
        replay_frames(task, loaded, weather, sent, stage)
    else:
        asyncio.run(replay_batches(task, loaded, weather, sent, stage))
    np.savez(task.ledger, allow_pickle=False, **sent.columns())
    stage.tell("done", len(loaded), len(loaded))


if __name__ == "__main__":
    work(AirportTask, replay)
