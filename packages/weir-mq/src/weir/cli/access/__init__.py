"""`weir user`, `weir role`, `weir acl`, `weir access`: users, their rights, and the mode."""
