"""Handlers of messages, and effects that happen once: what `weir.App` and `weir.Inbox` are made of.

`app` is what users decorate, `dispatcher` one subscription at work; `core` decides and is pure.
`inbox` is a table in the user's database; `supervisor` runs the processes of `weir work`.
"""
