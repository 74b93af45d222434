"""The command `weir`: every verb a user types. Rooms load inside the commands, so help is quick."""
