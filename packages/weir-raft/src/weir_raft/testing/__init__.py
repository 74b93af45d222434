"""What tests a host of the library: nodes that fail by the dice of a seed."""
