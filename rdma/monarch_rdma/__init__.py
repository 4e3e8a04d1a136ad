"""Buffers, registrations and transports of the data plane."""
