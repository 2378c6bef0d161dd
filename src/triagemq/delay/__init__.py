"""How long packets wait in the queues of switches that do not show it, and what is done about it (Shi et al., 2019).

    queue_samples ─► samples ─► estimators ─► delays of queues ─► widths         of the queues of a port
                                 learning            │              ▲
                                                     └─► constraints of switches, from requirements along paths

- In: `samples` are the counters of a queue every 200 ms, and what they gained; `queue_length` is what that leaves in
  the queue.
- `estimators` say the mean delay in a queue, now and in the next window; `learning` has the features, the trees and the
  model files of the learned one.
- Out: `widths` divides a port among its queues (local bandwidth adjustment), `constraints` a delay requirement among
  the switches of its path (global control), and how publishers slow down.
- In operation: `control` decides the widths of one port, `administrator` has a controller for each cluster of switches
  and the administrator above them, `simulated` runs them in a simulation. All are pure: the gateway reads counters and
  sets widths.

Widths are what a queue can count on (ports of the discipline `widths`). Formulas: docs/background/queue-delay.md.
"""
