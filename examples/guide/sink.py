import pyarrow as pa

from weir import sync

URL = "weir://localhost:6800"


def run(w, batch, counts):
    """Compute a batch of a result, and write it: the second time it adds nothing."""
    sink = w.sink("counts by airport")
    staged = []
    for rows in counts:  # as if each writer were another process
        writer = sink.writer(batch)
        names, numbers = [*rows], [str(number) for number in rows.values()]
        writer.write("counts", pa.RecordBatch.from_pydict({"key": names, "value": numbers}))
        staged += writer.finish()  # the result is small: send it to the process that publishes
    return sink.publish(batch, staged)


with sync.connect(URL) as w:
    w.create_topic("counts", partitions=2)
    print("duplicate:", run(w, 0, [{"EWR": 120_835}, {"JFK": 111_279, "LGA": 104_662}]).duplicate)
    print("duplicate:", run(w, 0, [{"EWR": 120_835}, {"JFK": 111_279, "LGA": 104_662}]).duplicate)
    messages = sorted(w.reader("counts", follow=False), key=lambda message: message.key)
    for message in messages:
        print(message.key.decode(), message.value.decode())
    print(len({message.stamp for message in messages}), "stamp")
