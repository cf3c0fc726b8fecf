"""Servers for tests: each a process on the loopback interface that ends with its ``with`` block."""
