"""Balancing: when a broker of a cluster has too much, and who goes where (PEER-WD sections 4.2 to 4.4).

Decisions without input, output or a clock: what is measured goes in as events that carry their time, migrations come
out. The simulator and the exchange use the same.

- `detection`: settings, events in and out, rates of the next interval, and which brokers are LOW, HIGH or OVERLOAD;
- `selection`: who leaves an edge or a head for where, and edges as they would be meanwhile;
- `balancer`: the state machine around these (one balancing at a time for a broker, time-outs), and the policies by
  name; PEER, the baseline, is in `lab.clusters`.
"""
