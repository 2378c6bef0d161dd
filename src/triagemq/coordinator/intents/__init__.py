"""What clients have announced, from a request that was understood to the tables of a Scenario.

The records themselves (`triagemq.intents`) are what the client made, REST took and the store keeps: here they are
neither checked nor written anew.

* `registry`: who may announce it, and everything that is announced now
* `leases`: how long it stays without a word
* `book`: all of it as columns, changed client by client, turned into a Scenario at once
* `wanted`, `published`: the columns of subscribers, and those of publishers with what was measured of their topics
"""
