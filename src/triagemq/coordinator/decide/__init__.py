"""One decision: what is known now and what was decided before in; a plan, orders and reasons out. Pure.

* `network`: the fixed part of an exchange
* `decide`: the decision as a whole
* `slots`: which connection of a subscriber carries which topic, so that as little as possible moves
* `changes`: what that changes, worked out once
* `orders`: what a gateway is told: ports, flows, ways of topics; whole, or what has changed
* `homes`: which gateway serves which client, where there are several; `campus_places`: by the rules of placement
* `campus_balance`: who leaves a broker that has too much
* `account`: the reasons, for an operator to read
* `forecasts`, `what_if`: what the plan will do, and what another situation would
"""
