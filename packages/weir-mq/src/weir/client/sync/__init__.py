"""The client without async, and a client over one blocking socket for worker processes."""
