from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("transfers", partitions=1)
    w.create_topic("accounts", partitions=3)
    w.publish("transfers", b"7")
    with w.consumer("transfers", cluster="tellers") as consumer:
        for message in consumer:
            with w.scatter() as s:
                s.publish("accounts", b"-" + message.value, partition=0)
                s.publish("accounts", b"+" + message.value, partition=2)
                s.ack(message)
            break
    print(s.receipts[0].stamp == s.receipts[1].stamp)
    print(w.clusters("transfers", "tellers")[0].lag)
