"""An MQTT 3.1.1 and 5 client.

packets                pure functions between values and octets
session                octets in, octets and reports out, no socket; messages that the broker does not have for sure
connection             the sockets
translation            packets of clients as a proxy reads them, between the versions
tap                    topic, time and size of what passes through a broker
"""
