"""The device dialect: subscribe, notify, pull and ack."""
