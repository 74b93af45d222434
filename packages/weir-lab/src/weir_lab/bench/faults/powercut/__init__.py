"""Power cuts under load: each node on a Linux kernel and an ext4 disk of its own, killed like that.

`make powercut NODES=1|3 TIMES=20`. User-mode Linux is a whole kernel as one process: killing that
takes its page cache with it, which killing a node does not. What it had handed to its disk stays.
"""
