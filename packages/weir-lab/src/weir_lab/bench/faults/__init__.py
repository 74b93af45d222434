"""Measurements under faults: nodes killed, disks that stall or rot, networks cut, power lost."""
