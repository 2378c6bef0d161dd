"""One decision: what is known now and what was decided before in; a plan, orders and reasons out. Pure.

* `network`: the fixed part of an exchange
* `decide`: the decision as a whole: topics that have no rate yet, what a plan changes, and the reasons for an operator
* `promised`: promises on the wire, and the stages that each hold them
* `placement`: the gateway of each client, where there are several, and moves from a full broker
* `what_if`: forecasts of a decision, and of another situation; promises by name
"""
