"""Promised messages next to brokered copies, and fair ports: all ports on one list of what happens next.

In comes what `path` has brought to the switches, and the promises of a plan; out go endings, as of everything else.

- `direct` lays out the routes of promised messages and says when they are released;
- `event_list` lets everything at switches and ports happen in the order of time, in a `state`;
- `packets` are those of promised messages: over the access link, past the limiter, along their tree.
"""
