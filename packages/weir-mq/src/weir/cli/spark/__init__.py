"""`weir spark` and `weir pipeline`: what runs in Spark, as commands."""
