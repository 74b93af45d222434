"""Lone publishes of many connections, sent by a program in C that is the same for all brokers."""
