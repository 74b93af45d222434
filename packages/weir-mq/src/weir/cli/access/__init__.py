"""`weir user`, `weir role`, `weir acl`, `weir access`: who may do what."""
