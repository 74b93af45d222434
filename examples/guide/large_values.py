from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("films")
    with w.producer("films") as producer:
        producer.publish_from(bytes(1 << 20) for _ in range(20))  # or a file, open in binary mode
    for message in w.reader("films", value_bytes_max=1 << 20, follow=False):
        print(message.size, sum(len(piece) for piece in message.chunks()))
