from weir import sync
from weir.spark.session import session

URL = "weir://localhost:6800"

with sync.connect(URL) as w:
    w.create_topic("delays", partitions=3)
    w.publish("delays", "52 minutes", key="EWR", tag="late", partition=0)
    w.publish("delays", "on time", key="EWR", tag="good", partition=0)
    w.publish("delays", "no report", key="EWR", partition=2)
    w.publish("delays", "17 minutes", key="JFK", tag="late", partition=2)
    w.publish("delays", "80 minutes", key="EWR", tag="late", partition=1)

late = (
    session()
    .read.format("weir")
    .option("url", URL)
    .option("topic", "delays")
    .option("tags", '["late", ""]')
    .option("keys", '["EWR", {"hex": "00ff"}]')
    .option("partitions", "[0, 2]")
    .load()
)
for row in late.orderBy("partition", "offset").collect():
    print(row.partition, row.tag, row.value.decode())
