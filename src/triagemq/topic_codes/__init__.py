"""Topics as bits of an IPv6 multicast address (Shi et al. 4.2): a subtree of topics is a prefix that switches match.

tree      topic trees in YAML files
address   which topic has which bits, in a book that grows and never gives the bits of one topic to another; topic and
          event type in one address, and back
"""

from triagemq.topic_codes.address import (
    EVENT_PORT,
    CodeBook,
    EventAddress,
    Prefix,
    event_address,
    load_book,
    read_address,
    save_book,
    subtree_prefix,
    with_names,
)
from triagemq.topic_codes.tree import read_tree

__all__ = [
    "EVENT_PORT",
    "CodeBook",
    "EventAddress",
    "Prefix",
    "event_address",
    "load_book",
    "read_address",
    "read_tree",
    "save_book",
    "subtree_prefix",
    "with_names",
]
