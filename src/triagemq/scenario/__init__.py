"""The data model of a situation, its files, its checks and its generators."""

from triagemq.scenario.kinds import ArrivalProcess, SendingOrder, SizeDistribution, UtilityShape
from triagemq.scenario.loading import check, load, loads
from triagemq.scenario.model import (
    BrokerLinks,
    Brokers,
    Floats,
    Integers,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    SizeSamples,
    Subscribers,
    Subscriptions,
    Switches,
    Table,
    Topics,
    UnmanagedSwitches,
)
from triagemq.scenario.routes import BrokerRoutes, broker_routes, port_depths, port_hops, port_paths
from triagemq.scenario.saving import dumps, save
from triagemq.scenario.utility import achieved_utility, deadline_factor, deadline_figures, maximum_utility

__all__ = [
    "ArrivalProcess",
    "BrokerLinks",
    "BrokerRoutes",
    "Brokers",
    "Floats",
    "Integers",
    "OutputPorts",
    "PlanningSettings",
    "Publications",
    "Publishers",
    "Scenario",
    "SendingOrder",
    "SizeDistribution",
    "SizeSamples",
    "Subscribers",
    "Subscriptions",
    "Switches",
    "Table",
    "Topics",
    "UnmanagedSwitches",
    "UtilityShape",
    "achieved_utility",
    "broker_routes",
    "check",
    "deadline_factor",
    "deadline_figures",
    "dumps",
    "load",
    "loads",
    "maximum_utility",
    "port_depths",
    "port_hops",
    "port_paths",
    "save",
]
