"""What an actor is told of a message of its own that reached nobody."""

from __future__ import annotations

from dataclasses import dataclass

from ._ids import ActorAddr


@dataclass(frozen=True)
class UndeliverableMessageEnvelope:
    """A message without an answer, of ``broadcast`` or to a port, that could not be delivered.

    ``_handle_undeliverable_message`` of the actor that sent it is given one, if its class has such a method: a truthy
    return means that it is handled, else the actor fails. Who calls and waits gets the error itself.

    Attributes
    ----------
    sender, dest, error_msg
        Functions, as Monarch has them: the `Instance.actor_id` of the sender, the endpoint or port it was sent to with
        its mesh and rank, and why it did not get there.

    Examples
    --------
    >>> class Reporter(Actor):
    ...     def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> bool:
    ...         print(f"{envelope.dest()} got nothing: {envelope.error_msg()}")
    ...         return True
    """

    _sender: ActorAddr
    _dest: str
    _error_msg: str

    def sender(self) -> ActorAddr:
        """Who sent it."""
        return self._sender

    def dest(self) -> str:
        """Where it was to go."""
        return self._dest

    def error_msg(self) -> str:
        """Why it did not get there."""
        return self._error_msg


__all__ = ["UndeliverableMessageEnvelope"]
