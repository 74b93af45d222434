from weir import sync

with sync.connect("weir://localhost:6800") as w:
    for message in w.reader("flights", start="earliest", follow=False):
        print(message.key.decode(), message.value.decode())
