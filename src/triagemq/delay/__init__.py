"""Queueing delays from the counters of switches, and control of queues by them (Shi et al., 2019).

    queue_samples ─► samples ─► estimators ─► delays of queues ─► control        of the queues of a port
                                 learning            │              ▲
                                                     └─► constraints of switches, from requirements along paths

- In: `samples` are the counters of a queue every 200 ms, their increments, and the length of the queue by them.
- `estimators` estimate the mean delay in a queue, now and in the next window; `learning` has the features, the trees
  and the model files of the learned one.
- Out: `control` divides a port among its queues (local bandwidth adjustment), `constraints` a delay requirement among
  the switches of its path (global control), and has the pace at which publishers slow down.
- In operation: `PortController` decides the queue rates of one port, `Administrator` the constraints of all. Both are
  pure: the gateway reads counters and sets queue rates; `lab.simulated_control` runs them in a simulation.

A width is the bandwidth that a queue can count on (ports of the discipline `queue_rates`). Formulas:
docs/background/queue-delay.md.
"""
