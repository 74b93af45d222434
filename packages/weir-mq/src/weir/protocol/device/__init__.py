"""The device protocol: frames that devices send and receive."""
