"""Admission: which guaranteed subscriptions are promised their latency, proven, and which are refused (after MIDAS).

In come a scenario and what was promised before, out go the promises, hops and limiters of a Plan, and why the others
are refused. `promises` finds the pairs that match and what their messages are on the links of the network; the `ledger`
decides one by one, over `links` that are checked each for itself, and whose levels change in an order that keeps every
promise; `planning` does it all for a plan, with what an earlier plan promised, and explains it.
"""
