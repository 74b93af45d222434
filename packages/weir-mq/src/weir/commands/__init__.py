"""What `weir tail` and `weir sub` do once their words are read: coroutines over a client.

They take a connection, and something to write to; the command line gives them stdout.
"""
