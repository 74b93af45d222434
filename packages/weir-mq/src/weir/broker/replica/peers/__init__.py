"""The other nodes of the set: frames to and from them, refills of what rotted, and their clocks."""
