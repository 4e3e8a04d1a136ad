"""All that crosses a process: the services, frames, records, resumable links, code shipping and the one I/O thread."""

WIRE = 1
"""The version of everything in this package that two processes must agree on. Another one is refused by both names."""
