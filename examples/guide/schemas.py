import json

from weir import errors, sync
from weir.schema import Schema

fields = {"hub": {"type": "integer"}, "open": {"type": "boolean"}}
lock = Schema(
    "json",
    json.dumps({"type": "object", "properties": fields, "required": ["hub", "open"]}).encode(),
)

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("locks")
    added = w.schemas.add("locks", lock)
    print(f"version {added.number}")
    with w.producer("locks", schema=added.number, check=True) as producer:
        producer.publish({"hub": 42, "open": True})
        try:
            producer.publish({"hub": "42", "open": True})
        except errors.BadValue as error:
            print(error)
    for message in w.reader("locks", follow=False):
        print(message.schema, message.value.decode())
