"""Hosts: they carry out what the pure rooms decide, with sockets, files and clocks."""
