"""How long packets wait in the queues of switches that do not show it, and what is done about it (Shi et al., 2019).

    queue_samples ─► samples ─► estimators ─► delays of queues ─► widths         of the queues of a port
                     increments  learning            │              ▲
                                                     └─► constraints of switches, from requirements along paths

- In: `samples` are the counters of a queue every 200 ms, `read_errors` what real switches get wrong about them,
  `increments` what was gained between two, `queue_length` what that leaves in the queue.
- `estimators` say the mean delay in a queue, now and in the next window, one a file; `learning` is what the learned one
  stands on: features of samples, trees, and the folder that a model is kept in.
- Out: `widths` divides a port among its queues (local bandwidth adjustment), `constraints` a delay requirement among
  the switches of its path (global control).
- In operation: `control` decides the widths of one port, `clusters` has a controller for the switches of each cluster,
  `administrator` the one above them; `pace` is how publishers slow down when they are asked to. All are pure; who reads
  counters and sets widths is elsewhere.

Widths are what a queue can count on (ports of the discipline `widths`). Formulas: docs/background/queue-delay.md.
"""
