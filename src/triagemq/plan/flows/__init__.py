"""Which subscriptions of one subscriber share a flow."""

from triagemq.plan.flows.greedy import greedy
from triagemq.plan.flows.problem import FlowAlgorithm, FlowProblem
from triagemq.plan.flows.random import random

FLOW_ALGORITHMS: dict[str, FlowAlgorithm] = {"greedy": greedy, "random": random}

__all__ = ["FLOW_ALGORITHMS", "FlowAlgorithm", "FlowProblem"]
