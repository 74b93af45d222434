from pathlib import Path

from pyspark.sql import functions as F

from weir import sync
from weir.spark.session import session

URL = "weir://localhost:6800"
CHECKPOINT = Path("late-checkpoint").resolve()

with sync.connect(URL) as w:
    w.create_topic("flights")
    w.create_topic("late")
    for text in ("UA1545 on time", "DL461 late", "AA1141 late"):
        w.publish("flights", text, key=text.split()[0])

spark = session()
flights = spark.readStream.format("weir").option("url", URL).option("topic", "flights").load()
text = F.col("value").cast("string")
late = flights.where(text.endswith("late")).select("key", F.upper(text).alias("value"))
query = late.writeStream.format("weir").option("url", URL).option("topic", "late")
query = query.option("checkpointLocation", str(CHECKPOINT)).trigger(availableNow=True)
query.start().awaitTermination()

totals = spark.createDataFrame([("total", "2 LATE")], "key string, value string")
for _ in range(2):  # the second one adds nothing
    write = totals.write.format("weir").mode("append").option("url", URL)
    write.option("topic", "late").option("id", "totals of 2013-01-01").save()

with sync.connect(URL) as w:
    for message in w.reader("late", follow=False):
        print(message.key.decode(), message.value.decode())
    print([(sink.batch_id, len(sink.query)) for sink in w.sinks("late")])
