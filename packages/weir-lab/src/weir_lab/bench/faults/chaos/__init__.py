"""A set of nodes whose leader is killed, paused or cut off under load, judged by its clients."""
