"""The one tree of errors.

::

    MonarchError
    ├── ActorError                        an endpoint raised; `.exception` is the original
    ├── SupervisionError   (RuntimeError) the receiver cannot answer
    │   ├── ProcDied                      its process ended: signal or exit code, last lines, log
    │   ├── ConstructorFailed             its ``__init__`` (or its class) did not work
    │   ├── ActorStopped                  it was stopped on purpose
    │   ├── ActorRestarted                the call was in flight when its rank was restarted
    │   ├── HostLost                      no word from its host's daemon
    │   ├── Deadlock                      actors wait for each other, or one for itself
    │   ├── BufferOwnerGone               the process that owns registered memory ended
    │   └── OutcomeUnknown                nobody alive knows whether the call ran
    ├── WouldBlockRuntime  (RuntimeError) a wait would stop the event loop that has to bring its answer
    ├── TransferError      (RuntimeError) registered memory could not be read or written
    │   ├── BufferNotFound (LookupError)  it was dropped
    │   └── TransferTimeout (TimeoutError)  it took longer than was allowed
    ├── RdmaInitError      (RuntimeError) the settings leave this process no way to transfer
    ├── NotOwner (NotImplementedError, ValueError)  only who spawned a mesh may stop it
    ├── SpawnError         (RuntimeError) processes or actors could not be started
    │   └── NotEnoughSlots (ValueError)   more GPUs or hosts asked for than there are
    └── SessionError       (RuntimeError) the session as a whole
        ├── NoSuchSession  (LookupError)  no live session of that name
        ├── NotAttached                   this process is attached to no session
        ├── AlreadyAttached               it is attached to another one
        ├── SpecMismatch   (ValueError)   a live session of that name has another spec
        ├── ControllerPresent             another controller is connected and alive
        ├── TakenOver                     another controller took the session over
        ├── SessionEnded                  it was released, or its lease ran out
        ├── StaleHandle                   the handle belongs to an earlier incarnation of the host
        ├── ConnectionLost (ConnectionError)  a host was not reached within the reconnect window
        ├── AccessRefused  (PermissionError)  wrong secret, or not the owner
        ├── VersionSkew                   another wire version or Python minor version
        └── LaunchError                   a host could not be started

Every error says what to do next in its own text; `mesh`, `rank` and `host` name what it is about where there is one.
This module is a leaf: it imports nothing of ours.
"""

from __future__ import annotations

__all__ = [
    "AccessRefused",
    "ActorError",
    "ActorRestarted",
    "ActorStopped",
    "AlreadyAttached",
    "BufferNotFound",
    "BufferOwnerGone",
    "ConnectionLost",
    "ConstructorFailed",
    "ControllerPresent",
    "Deadlock",
    "HostLost",
    "LaunchError",
    "MonarchError",
    "NoSuchSession",
    "NotAttached",
    "NotEnoughSlots",
    "NotOwner",
    "OutcomeUnknown",
    "ProcDied",
    "RdmaInitError",
    "SessionEnded",
    "SessionError",
    "SpawnError",
    "SpecMismatch",
    "StaleHandle",
    "SupervisionError",
    "TakenOver",
    "TransferError",
    "TransferTimeout",
    "VersionSkew",
    "WouldBlockRuntime",
]


class MonarchError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message
        What happened and what to do, in words for the person at the notebook.
    mesh, rank, host
        What it is about: the mesh's name, the rank in it, the host's index. None where there is none.
    """

    def __init__(
        self, message: str, *, mesh: str | None = None, rank: int | None = None, host: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.mesh = mesh
        self.rank = rank
        self.host = host

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__))


def _rebuild(cls: type[MonarchError], state: dict[str, object]) -> MonarchError:
    # OSError has a layout of its own: its subclasses must be made by its own __new__.
    base: type[BaseException] = OSError if issubclass(cls, OSError) else Exception
    error = base.__new__(cls, state["message"])
    assert isinstance(error, cls)
    error.args = (state["message"],)
    error.__dict__.update(state)
    return error


class ActorError(MonarchError):
    """An endpoint raised.

    Attributes
    ----------
    exception
        The original exception object where it could be brought over, else a stand-in with its type name and text.
    message
        Which call failed on which rank, and the remote traceback.
    exception_formatted
        The remote traceback alone.

    Examples
    --------
    >>> try:
    ...     trainers.step.call(batch).get()
    ... except ActorError as error:
    ...     print(error.mesh, error.rank, type(error.exception))    # doctest: +SKIP
    trainers 3 <class 'ValueError'>
    """

    def __init__(
        self,
        exception: BaseException,
        message: str = "A remote actor call has failed.",
        *,
        mesh: str | None = None,
        rank: int | None = None,
        host: int | None = None,
    ) -> None:
        super().__init__(message, mesh=mesh, rank=rank, host=host)
        self.exception = exception

    @property
    def exception_formatted(self) -> str:
        """The remote traceback: all of the message but its first line, which names the call."""
        return self.message.partition("\n")[2]


class SupervisionError(MonarchError, RuntimeError):
    """The receiver of a call cannot answer: it is dead, failed, stopped or out of reach.

    A `RuntimeError`. ``mesh``, ``rank`` and ``host`` say who; its subclasses say why.

    Examples
    --------
    >>> try:
    ...     trainers.step.call(batch).get()
    ... except SupervisionError as error:
    ...     print(error.mesh, error.rank)                           # doctest: +SKIP
    trainers 3
    """


class ProcDied(SupervisionError):
    """The process of the rank ended; the message names rank, host, pid, signal or exit code, last lines and log."""


class ConstructorFailed(SupervisionError):
    """The actor's class could not be loaded or its ``__init__`` raised."""


class ActorStopped(SupervisionError):
    """The mesh was stopped on purpose before the call."""


class ActorRestarted(SupervisionError):
    """The rank was restarted while the call was in flight; whether the call had an effect is not known."""


class HostLost(SupervisionError):
    """The host's daemon has not been heard of for longer than the reconnect window."""


class Deadlock(SupervisionError):
    """Actors wait for each other in a circle, or one for itself: the wait could never end. The message names all."""


class BufferOwnerGone(SupervisionError):
    """The process that owns the memory of an `RDMABuffer` has ended, or cannot be reached."""


class OutcomeUnknown(SupervisionError):
    """Nobody alive knows whether the call ran; it is never run a second time."""


class WouldBlockRuntime(MonarchError, RuntimeError):
    """``.get()`` would stop the event loop that has to bring the answer: use ``await`` there."""


class TransferError(MonarchError, RuntimeError):
    """Registered memory could not be read or written."""


class BufferNotFound(TransferError, LookupError):
    """The buffer was dropped; what was its memory may hold something else by now."""


class TransferTimeout(TransferError, TimeoutError):
    """A transfer took longer than its `timeout`; it was given up, and how much of the bytes are new is not known."""


class RdmaInitError(MonarchError, RuntimeError):
    """What is configured leaves this process no way to transfer memory."""


class NotOwner(MonarchError, NotImplementedError, ValueError):
    """Only who spawned a mesh may stop it, and only as a whole; as in Monarch this is a NotImplementedError."""


class SpawnError(MonarchError, RuntimeError):
    """Processes or actors could not be started; nothing of the attempt is left."""


class NotEnoughSlots(SpawnError, ValueError):
    """More hosts or GPUs were asked for than there are; the message names asked, there and free."""


class SessionError(MonarchError, RuntimeError):
    """Something about the session as a whole."""


class NoSuchSession(SessionError, LookupError):
    """No live session of that name; the message lists those that exist and how the named one ended."""


class NotAttached(SessionError):
    """This process is attached to no session (or was, and detached)."""


class AlreadyAttached(SessionError):
    """This process is attached to another session; detach first."""


class SpecMismatch(SessionError, ValueError):
    """A live session of that name has another spec; the message lists the differences."""


class ControllerPresent(SessionError):
    """Another controller is connected and alive; take over on purpose or leave it alone."""


class TakenOver(SessionError):
    """Another controller took this session over; the message says who and when."""


class SessionEnded(SessionError):
    """The session was released, its lease ran out, or its hosts are gone."""


class StaleHandle(SessionError):
    """The handle was made in an earlier incarnation of its host; what it named is gone."""


class ConnectionLost(SessionError, ConnectionError):
    """A host could not be reached within the reconnect window."""


class AccessRefused(SessionError, PermissionError):
    """The host refused the caller: wrong session secret, or another user's session."""


class VersionSkew(SessionError):
    """The two ends speak another wire version or run another Python minor version; both are named."""


class LaunchError(SessionError):
    """A host could not be started; the message carries what the starter said."""
