from weir import sync
from weir.spark.session import session

URL = "weir://localhost:6800"

with sync.connect(URL) as w:
    for airport in ("EWR", "JFK"):
        others = [f"gates.{other}" for other in ("EWR", "JFK") if other != airport]
        w.create_topic(f"gates.{airport}", scatter_with=others)
    w.publish("gates.EWR", "UA 1 departed")
    w.publish("gates.JFK", "UA 1 arrived")
    w.publish("gates.JFK", "DL 7 departed")

gates = session().read.format("weir").option("url", URL).option("topics", '["gates.*"]').load()
for row in gates.orderBy("stamp").collect():
    print(row.topic, row.value.decode())
