"""TriageMQ decides, when a network cannot carry everything, which IoT events go first and which not at all."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triagemq.client import BlockingPublisher as BlockingPublisher
    from triagemq.client import BlockingSubscriber as BlockingSubscriber
    from triagemq.client import Publisher as Publisher
    from triagemq.client import Subscriber as Subscriber

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The client library, imported on first use: everything else starts without it."""
    if name in ("BlockingPublisher", "BlockingSubscriber", "Publisher", "Subscriber"):
        from triagemq import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
