"""The folders of a node on a real disk, and the threads that work on them."""
