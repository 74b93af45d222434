"""Handlers of messages, and effects that happen once: what `weir.App` and `weir.Inbox` are made of.

`app` is what users decorate, `handling` one subscription at work, `verdict`, `breaker` and `lanes`
what it decides, without clock or dice; `inbox` is a table in the user's database.
"""
