"""One decision: what is known now and what was decided before in; a plan, orders and reasons out. Pure.

* `network`: the fixed part of an exchange
* `decide`: the decision as a whole; `unseen`: topics without a rate
* `changes`: what a plan changes, worked out once, from columns
* `orders`: what a gateway follows: ports, connections, a class and drop rate for each topic; whole, or as a change
* `promised`, `staging`: promises on the wire, and the stages that each keep them; `promise_facts`: them by name
* `placement`: the gateway of each client, where there are several; `campus_balance`: moves from a full broker
* `account`: the reasons, for an operator to read
* `what_if`: forecasts of a decision, and of another situation
"""
