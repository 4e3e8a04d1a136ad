"""Memory that other processes of a session read and write: registrations, and the transports that move the bytes.

`monarch_kernel.rdma` is the face of it. Nothing of ours is imported here: a `Node` is given an event loop, a key and an
address, and may as well run in a process of its own that knows no actors.

=============  ==============================================================================
`memory`       `Memory`: the bytes of a tensor, array or memoryview, without a copy
`registry`     `Registry`: what a process has registered; who uses it right now
`transport`    `Transport`: what moves bytes, and who calls it when; `Buffer`: what is handed around
`local`        the transport within one process
`wire`         what is said on a connection, and the proof that comes before it
`tcp`          the transport over TCP, asking side
`server`       ... and the side that owns the memory
`node`         `Node`: all of it for one process
=============  ==============================================================================
"""
