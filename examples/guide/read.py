from datetime import datetime, timedelta

import weir
from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("orders")
    for number in range(10):
        w.publish(
            "orders", str(number), key="even" if number % 2 == 0 else "odd", tag=f"t{number % 3}"
        )

    def values(**options):
        return b" ".join(
            message.value for message in w.reader("orders", follow=False, **options)
        ).decode()

    print("all      ", values())
    print("from 7   ", values(start={0: 7}))
    print("last 2   ", values(start=weir.last(2)))
    print("last hour", values(start="-1h"))
    print("since    ", values(start=datetime.now() - timedelta(minutes=5)))
    print("before   ", values(until={0: 3}))
    print("one key  ", values(key="odd"))
    print("its last ", values(key="even", start="last"))
    print("two tags ", values(tag=["t0", "t1"]))

    with w.reader("orders", start="latest") as reader:  # follow=True: waits for what comes
        w.publish("orders", "news")
        print("news     ", next(reader).value)
        print("go on at ", reader.positions)
