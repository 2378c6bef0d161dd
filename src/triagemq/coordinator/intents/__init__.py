"""What clients have announced, from a request that was understood to the tables of a Scenario.

The records themselves (`triagemq.intents`) are what the client made, REST took and the store has.

* `registry`: rights, limits and names; everything that is announced now, and its leases
* `book`: all of it as columns, changed client by client, turned into a Scenario at once
* `columns`: those of subscribers, and those of publishers with what was measured of their topics
"""
