"""Promised messages beside brokered copies, and fair ports: all ports on one list of what happens next.

In comes what `path` has brought to the switches, and the promises of a plan; out go endings, as of everything else.

- `direct` lays out the ways of promised messages, `releases` says when they are sent;
- `mixed` leads: down to the switches as `path` does, then all ports on one `event_list` of `event_queue` in a `state`;
- `packets` are those of the messages that `under_way` keeps until they have ended, but for what `limiters` cut;
- `promises` says what became of them.
"""
