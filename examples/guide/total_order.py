from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("moves", partitions=3, order="total")
    with w.reader("moves") as live:  # or any topic with w.reader(..., order="total")
        for number in range(6):
            w.publish("moves", str(number), key=f"plane-{number}")
        seen = [next(live).value for _ in range(6)]
        print("seen     ", b" ".join(seen).decode(), "in", live.order, "order")
    again = w.reader("moves", follow=False)
    print("replayed ", b" ".join(message.value for message in again).decode())
    some = w.reader("moves", follow=False, key=["plane-2", "plane-4"])
    print("two keys ", b" ".join(message.value for message in some).decode())
