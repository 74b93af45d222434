import json

from weir import sync
from weir.schema import Schema
from weir.spark import typed
from weir.spark.session import session

URL = "weir://localhost:6800"
LOCK = {
    "type": "object",
    "required": ["hub"],
    "properties": {"hub": {"type": "integer"}, "level": {"type": "number"}},
}

with sync.connect(URL) as w:
    w.create_topic("locks", partitions=1)
    for value in ('{"hub": 7, "level": 80}', '{"hub": 8}', '{"level": 1}', "shut"):
        w.publish("locks", value)

spark = session()
locks = spark.read.format("weir").option("url", URL).option("topic", "locks").load()
schema = Schema("json", json.dumps(LOCK).encode())
rows = typed(locks, schema)
for row in rows.orderBy("offset").select("offset", "data.*", "reason").collect():
    print(row.offset, row.hub, row.level, row.reason)
