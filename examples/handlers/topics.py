import weir

app = weir.App("weir://localhost:6800")


@app.subscribe(["payments", "shop.*"], cluster="audit")
async def note(message: weir.Message) -> None:
    print(message.topic, message.value.decode())
