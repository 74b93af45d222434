"""The processes of `weir work`: how many run, how each is started, watched and ended."""
