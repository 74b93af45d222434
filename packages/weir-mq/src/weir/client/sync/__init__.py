"""The client without async: what applications import as `weir.sync`."""
