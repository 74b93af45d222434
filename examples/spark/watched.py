import json
from pathlib import Path

from weir import sync
from weir.schema import Schema
from weir.spark import count_bad, typed, watch
from weir.spark.session import session

URL = "weir://localhost:6800"
CHECKPOINT = Path("doors-checkpoint").resolve()
DOOR = {"type": "object", "required": ["hub"], "properties": {"hub": {"type": "integer"}}}

spark = session()
with sync.connect(URL) as w:
    w.create_topic("doors", partitions=1)
    for value in ('{"hub": 7}', "open", '{"hub": 8}'):
        w.publish("doors", value)

    with watch(spark, URL, port=0) as watching:
        doors = spark.readStream.format("weir").option("url", URL).option("topic", "doors").load()
        rows = count_bad(typed(doors, Schema("json", json.dumps(DOOR).encode())))
        query = (
            rows.writeStream.queryName("doors")
            .format("noop")
            .option("checkpointLocation", str(CHECKPOINT))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    w.publish("doors", '{"hub": 9}')
    for line in watching.text().splitlines():
        if line.startswith(("weir_spark_rows", "weir_spark_bad", "weir_spark_running")):
            print(line)
    for cluster in w.clusters("doors"):
        print(cluster.name, "has", cluster.lag, "message left to read")
