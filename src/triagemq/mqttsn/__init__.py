"""MQTT-SN 1.2 on the wire: pure functions between messages and octets; no sockets, no state.

    encode(message) -> bytes        every message of the specification, as dataclasses
    decode(datagram) -> Message     or DecodeError, which says why; no other exception for any octets
    peek(datagram)                  message type and header length, without decoding the rest
    encode_publish                  what a gateway sends most, without message objects;
    encapsulation_header            the same for what goes in front of it to a forwarder
    topics, filters                 which topic names and filters are valid; what a filter takes in
    timestamps, properties          what is in front of a payload: its time, what MQTT 5 says of it

>>> decode(encode(Register(topic_id=0, message_id=1, topic_name="floor3/smoke")))
Register(topic_id=0, message_id=1, topic_name='floor3/smoke')
"""

from triagemq.errors import DecodeError as DecodeError
from triagemq.mqttsn.codec import decode as decode
from triagemq.mqttsn.codec import encapsulation_header as encapsulation_header
from triagemq.mqttsn.codec import encode as encode
from triagemq.mqttsn.codec import encode_publish as encode_publish
from triagemq.mqttsn.codec import peek as peek
from triagemq.mqttsn.filters import matches as matches
from triagemq.mqttsn.messages import RESERVED_TOPIC_IDS as RESERVED_TOPIC_IDS
from triagemq.mqttsn.messages import Advertise as Advertise
from triagemq.mqttsn.messages import ConnAck as ConnAck
from triagemq.mqttsn.messages import Connect as Connect
from triagemq.mqttsn.messages import Disconnect as Disconnect
from triagemq.mqttsn.messages import Encapsulated as Encapsulated
from triagemq.mqttsn.messages import GwInfo as GwInfo
from triagemq.mqttsn.messages import Message as Message
from triagemq.mqttsn.messages import MessageType as MessageType
from triagemq.mqttsn.messages import PingReq as PingReq
from triagemq.mqttsn.messages import PingResp as PingResp
from triagemq.mqttsn.messages import PlainMessage as PlainMessage
from triagemq.mqttsn.messages import PubAck as PubAck
from triagemq.mqttsn.messages import PubComp as PubComp
from triagemq.mqttsn.messages import Publish as Publish
from triagemq.mqttsn.messages import PubRec as PubRec
from triagemq.mqttsn.messages import PubRel as PubRel
from triagemq.mqttsn.messages import RegAck as RegAck
from triagemq.mqttsn.messages import Register as Register
from triagemq.mqttsn.messages import RejectionReason as RejectionReason
from triagemq.mqttsn.messages import ReturnCode as ReturnCode
from triagemq.mqttsn.messages import SearchGw as SearchGw
from triagemq.mqttsn.messages import SubAck as SubAck
from triagemq.mqttsn.messages import Subscribe as Subscribe
from triagemq.mqttsn.messages import TopicIdType as TopicIdType
from triagemq.mqttsn.messages import UnsubAck as UnsubAck
from triagemq.mqttsn.messages import Unsubscribe as Unsubscribe
from triagemq.mqttsn.messages import WillMsg as WillMsg
from triagemq.mqttsn.messages import WillMsgReq as WillMsgReq
from triagemq.mqttsn.messages import WillMsgResp as WillMsgResp
from triagemq.mqttsn.messages import WillMsgUpd as WillMsgUpd
from triagemq.mqttsn.messages import WillTopic as WillTopic
from triagemq.mqttsn.messages import WillTopicReq as WillTopicReq
from triagemq.mqttsn.messages import WillTopicResp as WillTopicResp
from triagemq.mqttsn.messages import WillTopicUpd as WillTopicUpd
from triagemq.mqttsn.topics import is_brokers_own as is_brokers_own
from triagemq.mqttsn.topics import is_shared as is_shared
from triagemq.mqttsn.topics import publishable_topic_name as publishable_topic_name
from triagemq.mqttsn.topics import short_topic_id as short_topic_id
from triagemq.mqttsn.topics import short_topic_name as short_topic_name
from triagemq.mqttsn.topics import valid_topic_filter as valid_topic_filter
from triagemq.mqttsn.topics import valid_topic_name as valid_topic_name
