"""A fire fighter who wants to know about smoke: python examples/subscriber.py http://127.0.0.1:8080."""

import sys

from triagemq.client import BlockingSubscriber

with BlockingSubscriber(sys.argv[1], name="fire-fighter-7") as subscriber:
    subscriber.subscribe("building/3/+/smoke", utility="log:10", qos=1)
    for event in subscriber:
        print(event.topic, event.payload.decode(), flush=True)
