"""deliveries: one row per copy of an event on its way to one subscription, and what became of it."""

from __future__ import annotations

SCHEMA = """
    run_id           string,
    publication_id   bigint,
    subscription_id  int,
    subscriber_id    int,
    topic_id         int,
    flow_id          int     COMMENT 'null where the plan has no flow for it',
    priority_class   int,
    published_ns     bigint,
    enqueued_ns      bigint  COMMENT 'at the first managed port; null if it did not get there',
    dequeued_ns      bigint  COMMENT 'from the last managed port; null if it did not leave it',
    delivered_ns     bigint  COMMENT 'null if it was not delivered',
    size_bytes       int,
    outcome          string,
    measured         boolean COMMENT 'published after warm-up: only such copies count in figures'
"""
