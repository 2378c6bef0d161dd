"""What coordinator and gateways say to each other, on a line of JSON each; neither imports the other.

orders      ports, flows, classes, drop rates and promises of one gateway, as a whole or as a change
grants      who may publish and subscribe to what
messages    the records on the channel: the desired state, and what was measured
link        both ends: the coordinator's, which connects, and the gateway's, which answers
"""
