"""The rules of a session as plain state machines.

Every module here is pure: events go in as method calls, decisions come out as dataclasses. Nothing in this package
does I/O, starts a thread or reads a clock (the time is an argument, ``now``, in seconds of a monotonic clock), and
nothing in it imports the rest of ours. That is what lets the hard cases (a host lost between two messages, two kernels
racing) be tested in microseconds, in any order; thin drivers in the daemon and in the session do the I/O.
"""
