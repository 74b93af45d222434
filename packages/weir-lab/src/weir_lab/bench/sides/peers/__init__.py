"""Other brokers, measured with the same work: started by us, driven by small clients of our own.

A server is a module here with a `Peer` of its own; its protocol's two sides are in a second one.
"""
