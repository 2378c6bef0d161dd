"""An MQTT 3.1.1 and 5 client.

packets                pure functions between values and octets
outbox                 messages that the broker does not have for sure, within what it takes
session                octets in, octets and reports out, no socket
connection             the sockets
tap                    topic, time and size of what passes through a broker
"""

from triagemq.exchange.mqtt.connection import MqttConnection
from triagemq.exchange.mqtt.packets import ConnectAnswer, Message, PacketStream, PacketType
from triagemq.exchange.mqtt.session import Login, MqttOwner, MqttSession

__all__ = [
    "ConnectAnswer",
    "Login",
    "Message",
    "MqttConnection",
    "MqttOwner",
    "MqttSession",
    "PacketStream",
    "PacketType",
]
