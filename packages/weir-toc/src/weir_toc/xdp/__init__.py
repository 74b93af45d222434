"""The programmable switch: registers, minima, routes and marks in an XDP program of the kernel."""
