"""What an outbox hands to a receiver."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Message:
    """An event that waits to be sent."""

    number: int  # in the order of the outbox
    id: str  # the same however often it is sent
    body: str  # JSON with `type`, `timestamp` and `data`


class MessageReceiver(Protocol):
    """Takes messages, one or several together."""

    url: str  # the address, which may be secret
    host: str  # who it is, for messages
    most_together: int  # messages of one call of `deliver`

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send some messages, the oldest first.

        Raises:
            TransientError: If they are not accepted.
        """
