from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Epoch(_message.Message):
    __slots__ = ("term", "count")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    term: int
    count: int
    def __init__(self, term: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("client", "kind", "pid", "hostname", "user", "title")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    client: int
    kind: str
    pid: int
    hostname: str
    user: str
    title: str
    def __init__(self, client: _Optional[int] = ..., kind: _Optional[str] = ..., pid: _Optional[int] = ..., hostname: _Optional[str] = ..., user: _Optional[str] = ..., title: _Optional[str] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("wire", "python", "sid", "client")
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    wire: int
    python: str
    sid: str
    client: Client
    def __init__(self, wire: _Optional[int] = ..., python: _Optional[str] = ..., sid: _Optional[str] = ..., client: _Optional[_Union[Client, _Mapping]] = ...) -> None: ...

class HandshakeReply(_message.Message):
    __slots__ = ("wire", "python", "package", "session", "sid", "host", "incarnation", "daemon", "epoch")
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    wire: int
    python: str
    package: str
    session: str
    sid: str
    host: int
    incarnation: int
    daemon: int
    epoch: Epoch
    def __init__(self, wire: _Optional[int] = ..., python: _Optional[str] = ..., package: _Optional[str] = ..., session: _Optional[str] = ..., sid: _Optional[str] = ..., host: _Optional[int] = ..., incarnation: _Optional[int] = ..., daemon: _Optional[int] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("client", "takeover", "epoch")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    client: Client
    takeover: bool
    epoch: Epoch
    def __init__(self, client: _Optional[_Union[Client, _Mapping]] = ..., takeover: _Optional[bool] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("epoch", "registry", "calls", "faults", "faults_dropped", "lease", "before", "before_gone")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_GONE_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    registry: bytes
    calls: _containers.RepeatedCompositeFieldContainer[CallInfo]
    faults: _containers.RepeatedScalarFieldContainer[bytes]
    faults_dropped: int
    lease: str
    before: Client
    before_gone: float
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., registry: _Optional[bytes] = ..., calls: _Optional[_Iterable[_Union[CallInfo, _Mapping]]] = ..., faults: _Optional[_Iterable[bytes]] = ..., faults_dropped: _Optional[int] = ..., lease: _Optional[str] = ..., before: _Optional[_Union[Client, _Mapping]] = ..., before_gone: _Optional[float] = ...) -> None: ...

class CallInfo(_message.Message):
    __slots__ = ("sender", "mesh", "number", "endpoint", "started", "ranks", "done", "failed", "region", "kept_bytes", "dropped")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    sender: int
    mesh: int
    number: int
    endpoint: str
    started: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    failed: _containers.RepeatedScalarFieldContainer[int]
    region: bytes
    kept_bytes: int
    dropped: bool
    def __init__(self, sender: _Optional[int] = ..., mesh: _Optional[int] = ..., number: _Optional[int] = ..., endpoint: _Optional[str] = ..., started: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., done: _Optional[_Iterable[int]] = ..., failed: _Optional[_Iterable[int]] = ..., region: _Optional[bytes] = ..., kept_bytes: _Optional[int] = ..., dropped: _Optional[bool] = ...) -> None: ...

class DetachRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: Client
    def __init__(self, client: _Optional[_Union[Client, _Mapping]] = ...) -> None: ...

class DetachReply(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("session", "host", "incarnation", "daemon", "pid", "keeper_pid", "epoch", "controller", "controller_connected", "lease", "lease_left", "registry", "calls", "package", "slots")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    KEEPER_PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session: str
    host: int
    incarnation: int
    daemon: int
    pid: int
    keeper_pid: int
    epoch: Epoch
    controller: Client
    controller_connected: bool
    lease: str
    lease_left: float
    registry: bytes
    calls: _containers.RepeatedCompositeFieldContainer[CallInfo]
    package: str
    slots: bytes
    def __init__(self, session: _Optional[str] = ..., host: _Optional[int] = ..., incarnation: _Optional[int] = ..., daemon: _Optional[int] = ..., pid: _Optional[int] = ..., keeper_pid: _Optional[int] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ..., controller: _Optional[_Union[Client, _Mapping]] = ..., controller_connected: _Optional[bool] = ..., lease: _Optional[str] = ..., lease_left: _Optional[float] = ..., registry: _Optional[bytes] = ..., calls: _Optional[_Iterable[_Union[CallInfo, _Mapping]]] = ..., package: _Optional[str] = ..., slots: _Optional[bytes] = ...) -> None: ...

class SpawnRequest(_message.Message):
    __slots__ = ("record", "payload", "stop")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    payload: bytes
    stop: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, record: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., stop: _Optional[_Iterable[int]] = ...) -> None: ...

class SpawnReply(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("record", "payload")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    payload: bytes
    def __init__(self, record: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("mesh", "commit")
    MESH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    commit: bool
    def __init__(self, mesh: _Optional[int] = ..., commit: _Optional[bool] = ...) -> None: ...

class DecideReply(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("mesh", "reason", "here", "owner")
    MESH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    reason: str
    here: bool
    owner: str
    def __init__(self, mesh: _Optional[int] = ..., reason: _Optional[str] = ..., here: _Optional[bool] = ..., owner: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("stopped",)
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    stopped: int
    def __init__(self, stopped: _Optional[int] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("mesh", "ranks", "level", "here")
    MESH_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    level: str
    here: bool
    def __init__(self, mesh: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., level: _Optional[str] = ..., here: _Optional[bool] = ...) -> None: ...

class RestartReply(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: bytes
    def __init__(self, ranks: _Optional[bytes] = ...) -> None: ...

class BindRequest(_message.Message):
    __slots__ = ("bindings", "orphaned")
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    bindings: bytes
    orphaned: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bindings: _Optional[bytes] = ..., orphaned: _Optional[_Iterable[int]] = ...) -> None: ...

class BindReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReviseRequest(_message.Message):
    __slots__ = ("lease", "max_detached")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_DETACHED_FIELD_NUMBER: _ClassVar[int]
    lease: float
    max_detached: float
    def __init__(self, lease: _Optional[float] = ..., max_detached: _Optional[float] = ...) -> None: ...

class ReviseReply(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("mesh", "stream", "level", "here")
    MESH_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    stream: bool
    level: int
    here: bool
    def __init__(self, mesh: _Optional[int] = ..., stream: _Optional[bool] = ..., level: _Optional[int] = ..., here: _Optional[bool] = ...) -> None: ...

class LogReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostsRequest(_message.Message):
    __slots__ = ("addresses",)
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.ScalarMap[int, str]
    def __init__(self, addresses: _Optional[_Mapping[int, str]] = ...) -> None: ...

class HostsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DebugRequest(_message.Message):
    __slots__ = ("mesh", "rank", "line", "wait", "here", "prompt")
    MESH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    rank: int
    line: str
    wait: float
    here: bool
    prompt: int
    def __init__(self, mesh: _Optional[int] = ..., rank: _Optional[int] = ..., line: _Optional[str] = ..., wait: _Optional[float] = ..., here: _Optional[bool] = ..., prompt: _Optional[int] = ...) -> None: ...

class DebugReply(_message.Message):
    __slots__ = ("sessions", "output", "prompt", "ended")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    sessions: bytes
    output: str
    prompt: bool
    ended: bool
    def __init__(self, sessions: _Optional[bytes] = ..., output: _Optional[str] = ..., prompt: _Optional[bool] = ..., ended: _Optional[bool] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
