from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("events", partitions=2, retention="7d", retention_bytes=1 << 30)
    w.alter_topic("events", retention="30d", partitions=4)
    w.publish("events", b"x", partition=3)
    for part in w.parts("events"):
        print(part.partition, part.start, part.end)

    # A consumer cluster, looked at, stopped, moved, and let go on.
    w.seek_cluster("events", "billing", "earliest", create=True)
    w.pause_cluster("events", "billing")
    w.seek_cluster("events", "billing", "-1h")  # or "latest", a time, {partition: offset}
    w.resume_cluster("events", "billing")
    for share in w.clusters("events", "billing")[0].shares:
        print(share.partition, "behind by", share.lag)
    w.delete_topic("events")
