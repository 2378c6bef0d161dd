"""An MQTT 3.1.1 and 5 client: packets as pure functions, the session without sockets, the connection with them."""

from triagemq.exchange.mqtt.connection import MqttConnection
from triagemq.exchange.mqtt.owner import Login, MqttOwner
from triagemq.exchange.mqtt.packets import ConnAck, Message, PacketType
from triagemq.exchange.mqtt.session import MqttSession
from triagemq.exchange.mqtt.stream import PacketStream

__all__ = [
    "ConnAck",
    "Login",
    "Message",
    "MqttConnection",
    "MqttOwner",
    "MqttSession",
    "PacketStream",
    "PacketType",
]
