import weir

app = weir.App("weir://localhost:6800")


@app.subscribe(
    "payments",
    cluster="billing",
    mode="keyed",
    retry=weir.Backoff(attempts=5, first="1s", factor=2, most="5m", jitter=0.1),
    dead_letter="payments.dead",
    concurrency=32,
)
async def bill(message: weir.Message) -> None:
    await app.client.publish("bills", {"for": message.key.decode()}, key=message.key)


@app.before
def begins(message: weir.Message) -> None:
    print("begins", message.value.decode())


@app.after
async def over(message: weir.Message, error: BaseException | None) -> None:
    print("over", message.value.decode(), error)
