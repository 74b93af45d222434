from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("latches")
    with w.producer("latches") as producer:
        for number in range(6):
            producer.send(b"%d" % number, key=f"door {number % 2}")

    # Messages of a key in order, one at a time: what is behind one that failed waits for it.
    with w.consumer("latches", cluster="ledger", mode="keyed") as consumer:
        done = []
        for message in consumer:
            if message.value == b"2" and message.attempts == 1:
                print("2 fails:", message.nack(delay="1s", confirmed=True))
                continue
            with message:
                done.append(int(message.value))
            if len(done) == 6:
                break
        print("door 0:", [number for number in done if number % 2 == 0])
        print("door 1:", [number for number in done if number % 2 == 1])
    print(w.clusters("latches", "ledger")[0].mode, w.clusters("latches", "ledger")[0].lag)
