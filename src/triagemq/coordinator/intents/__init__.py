"""What clients have announced, from a request that was understood to the tables of a Scenario.

The records themselves (`triagemq.intents`) are what the client made, REST took and the store has.

* `registry`: rights, limits and names; everything that is announced now
* `book`: all of it as columns, with what was measured of topics, as tables of a Scenario
"""
