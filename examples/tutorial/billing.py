import weir

app = weir.App("weir://localhost:6800")


@app.subscribe("flights", cluster="billing", dead_letter="flights.dead")
def bill(message: weir.Message) -> None:
    if not message.key:
        raise weir.Reject("no airport is named")
    print("billed", message.value.decode())


if __name__ == "__main__":
    app.run_sync()
