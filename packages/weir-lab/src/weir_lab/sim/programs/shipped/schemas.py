"""The client as it ships gives a topic versions of a schema, and publishes values of them."""

from __future__ import annotations

from contextlib import suppress

from weir.client.client import Client
from weir.errors import (
    Disconnected,
    LevelTooLow,
    Refused,
    TopicExists,
    UnknownSchema,
    WeirError,
)
from weir.schema import Schema
from weir_lab.sim.observations import Typed
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

TYPED = "typed"
_PARTITIONS = 2
#: How often it adds a version rather than publish a value of one that there is.
_ADDS = 0.3
#: How often it asks again for what it has added, as who lost the answer does.
_AGAIN = 0.2


class ShippedSchemaPublisher(Shipped):
    """Adds versions and publishes values, so many together; in the end it reads all of them."""

    def __init__(self, scene: Scene, name: str, times: int, typed: Typed) -> None:
        """Note in `typed` what it does and finds."""
        super().__init__(scene, name)
        self._left = times
        self._serial = 0
        self._typed = typed

    async def work(self, client: Client) -> None:
        """Do one thing after the other."""
        with suppress(TopicExists):
            await client.create_topic(TYPED, _PARTITIONS)
        while self._left and not self._ending:
            self._left -= 1
            self._serial += 1
            if not self._typed.versions or self.world.chance(_ADDS):
                await self._add(client)
            else:
                await self._publish(client)
            await self.rest()
        await self.told_to_end()
        await self._read(client)

    async def _add(self, client: Client) -> None:
        text = b'{"type": "long", "doc": "%s.%d"}' % (self.name.encode(), self._serial)
        with self.operation("add a version"), suppress(Disconnected):
            try:
                added = await client.schemas.add(TYPED, Schema("avro", text))
                if self.world.chance(_AGAIN):
                    again = await client.schemas.add(TYPED, Schema("avro", text))
                    if again.number != added.number:
                        numbers = f"{added.number} and {again.number}"
                        self.complain("SchemaNamed", f"{text!r} has the numbers {numbers}")
            except LevelTooLow:
                with suppress(Refused):  # a node that supports less has just come
                    await client.nodes.raise_level()
                return
            except WeirError as error:
                if isinstance(error, Disconnected):
                    raise
                self.expect(error, "SchemaNamed", "a version was refused")
                return
            if added.schema.data != text:
                told = f"version {added.number} is {added.schema.data!r}"
                self.complain("SchemaNamed", f"{told}, and {text!r} was added")
            self._note(added.number, text)

    async def _publish(self, client: Client) -> None:
        number = self.world.dice.choice(sorted(self._typed.versions))
        value = b"%d|%s.%d" % (number, self.name.encode(), self._serial)
        with self.operation("publish a value of a version"), suppress(Disconnected):
            try:
                await client.publish(TYPED, value, schema=number)
            except UnknownSchema as error:
                self.complain("SchemaNamed", f"version {number} was confirmed: {error}")
            except WeirError as error:
                if isinstance(error, Disconnected):
                    raise
                self.expect(error, "SchemaNamed", "a value was refused")
            else:
                self._typed.confirmed.add(value)

    async def _read(self, client: Client) -> None:
        """Note which version each value has, and compare the versions there are."""
        typed = self._typed
        for one in (await client.schemas.versions(TYPED)).versions:
            self._note(one.number, one.schema.data)
        if set(typed.versions) != set(range(1, len(typed.versions) + 1)):
            self.complain("SchemaNamed", f"versions are missing: {sorted(typed.versions)}")
        async with client.reader(TYPED, follow=False) as reader:
            async for message in reader:
                typed.read[message.value] = message.schema
        typed.is_read = True

    def _note(self, number: int, text: bytes) -> None:
        known = self._typed.versions.setdefault(number, text)
        if known != text:
            self.complain("SchemaNamed", f"version {number} was {known!r} and is {text!r}")
