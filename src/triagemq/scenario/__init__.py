"""The data model of a situation, its files and its checks.

- `model` is the Scenario: frozen tables of columns; `kinds` their closed vocabularies;
- `utility` and `routes` compute what deliveries are worth and which paths they take;
- `files` reads and writes scenarios, and says what is wrong with a file;
- `conditions` is what happens during a run, and the situations in between;
- `building` makes a scenario by rule, `estimated` one of what was measured.
"""

from triagemq.scenario.files import (
    check,
    dumps,
    load,
    load_with_conditions,
    loads,
    loads_with_conditions,
    save,
)
from triagemq.scenario.kinds import (
    ArrivalProcess,
    Discipline,
    LimiterKind,
    SendingOrder,
    SizeDistribution,
    UtilityShape,
)
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
from triagemq.scenario.routes import (
    BrokerRoutes,
    broker_routes,
    direct_paths,
    port_depths,
    port_hops,
    port_paths,
    switch_links,
)
from triagemq.scenario.utility import achieved_utility, deadline_factor, deadline_figures, maximum_utility

__all__ = [
    "ArrivalProcess",
    "BrokerLinks",
    "BrokerRoutes",
    "Brokers",
    "Discipline",
    "Floats",
    "Integers",
    "LimiterKind",
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
    "direct_paths",
    "dumps",
    "load",
    "load_with_conditions",
    "loads",
    "loads_with_conditions",
    "maximum_utility",
    "port_depths",
    "port_hops",
    "port_paths",
    "save",
    "switch_links",
]
