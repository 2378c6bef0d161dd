"""Brokers: where one is, and one of our own for those who have none.

address    where a broker is, and how to log in
process    Mosquitto or the embedded one as a child: started again when it ends, at the same ports
users      whom it lets in, and for what
embedded   the broker in pure Python
"""

from triagemq.broker.address import BrokerAddress
from triagemq.broker.process import BrokerProcess, FurtherListener

__all__ = ["BrokerAddress", "BrokerProcess", "FurtherListener"]
