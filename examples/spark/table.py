from datetime import UTC, datetime, timedelta

from weir import sync
from weir.spark.session import session

URL = "weir://localhost:6800"

with sync.connect(URL) as w:
    w.create_topic("departures")
    for airport in ("EWR", "JFK", "EWR", "LGA"):
        w.publish("departures", "departed", key=airport)

now = datetime.now(UTC)
hour = (
    session()
    .read.format("weir")
    .option("url", URL)
    .option("topic", "departures")
    .option("startingTime", (now - timedelta(minutes=59)).isoformat())
    .option("endingTime", (now + timedelta(minutes=1)).isoformat())
    .load()
)
for key, count in sorted(hour.groupBy("key").count().collect()):
    print(key.decode(), count)
