"""A smoke sensor, for a running `triage up`: python examples/publisher.py http://127.0.0.1:8080."""

import sys
import time

from triagemq.client import BlockingPublisher

with BlockingPublisher(sys.argv[1], name="smoke-12") as publisher:
    publisher.declare({"building/3/12/smoke": 2.0})
    while True:
        publisher.publish("building/3/12/smoke", b"0.7", qos=1)
        time.sleep(0.5)
