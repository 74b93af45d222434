from pathlib import Path

from weir import sync
from weir.spark.session import session

URL = "weir://localhost:6800"
COPY, CHECKPOINT = Path("flights-copy").resolve(), Path("flights-checkpoint").resolve()

spark = session()


def copied():
    """Copy what is new since the last run to Parquet; return how many rows are there."""
    flights = (
        spark.readStream.format("weir")
        .option("url", URL)
        .option("topic", "flights")
        .option("maxRowsPerBatch", 400)
        .load()
    )
    query = (
        flights.writeStream.format("parquet")
        .option("path", str(COPY))
        .option("checkpointLocation", str(CHECKPOINT))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(str(COPY)).count()


with sync.connect(URL) as w:
    w.create_topic("flights", partitions=2)
    with w.producer("flights") as producer:
        for number in range(1_000):
            producer.send(f"UA{number}")
    print(copied(), "rows")
    w.publish("flights", "AA1")
    print(copied(), "rows after one more message")
