"""The rules that the network and the plan ask for, each set checked by the table model before it counts. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from triagemq.network.openflow.probes import all_probes, flow_probes
from triagemq.network.openflow.rule_sets import LimitedFlow, address_rules, base_rules
from triagemq.network.openflow.rules import Rule, RuleKey
from triagemq.network.openflow.table_model import Probe, TableModel
from triagemq.network.openflow.topology import Network, Routes

__all__ = ["FlowsChange", "RuleBook"]

_Rules = dict[int, dict[RuleKey, Rule]]


class FlowsChange(NamedTuple):
    """A change of flows that has passed the model and waits to be made: all flows and rules of the given addresses."""

    flows: Mapping[str, Sequence[LimitedFlow]]
    before: Mapping[str, _Rules]
    after: Mapping[str, _Rules]


class RuleBook:
    """`wanted` are the rules by switch and key. A change of flows costs as much as its own addresses have flows."""

    def __init__(self, sources: Collection[str], *, queues: bool) -> None:
        self.sources = sources
        self.network = Network()
        self.routes = Routes(self.network)
        self.wanted: _Rules = {}
        self._queues = queues
        self._model = TableModel({}, {})
        self._flows: dict[str, Sequence[LimitedFlow]] = {}
        self._rules_of: dict[str, _Rules] = {}

    @property
    def addresses(self) -> list[str]:
        """The addresses that have flows."""
        return list(self._flows)

    def fit(self, network: Network) -> None:
        """Make all rules anew for a network; on a RuleError everything stays as it was."""
        routes = Routes(network)
        rules_of = {
            address: address_rules(routes, address, flows, self.sources, queues=self._queues)
            for address, flows in self._flows.items()
        }
        wanted = base_rules(routes)
        for some in rules_of.values():
            for switch, rules in some.items():
                wanted[switch].update(rules)
        model = TableModel(network.links, wanted)
        model.check(all_probes(routes, self._flows, self.sources))
        self.network, self.routes, self._model = network, routes, model
        self.wanted, self._rules_of = wanted, rules_of

    def prepare(self, flows: Mapping[str, Sequence[LimitedFlow]]) -> FlowsChange:
        """Check what the given flows (all of each given address) come to; `make` or `abandon` must follow."""
        after = {
            address: address_rules(self.routes, address, some, self.sources, queues=self._queues)
            for address, some in flows.items()
        }
        change = FlowsChange(flows, {address: self._rules_of.get(address, {}) for address in flows}, after)
        probes = [
            probe
            for address, some in flows.items()
            for probe in flow_probes(self.routes, address, some, self.sources)
        ]
        self._change_model(change.before, after, probes)
        return change

    def abandon(self, change: FlowsChange) -> None:
        self._change_model(change.after, change.before, ())

    def make(self, change: FlowsChange) -> tuple[FlowsChange, dict[int, set[RuleKey]]]:
        """Make the change; gives the change that undoes it, and the keys that this touches, by switch."""
        old_flows = {address: self._flows.get(address, ()) for address in change.flows}
        touched: dict[int, set[RuleKey]] = {}
        for some in change.before.values():
            for switch, rules in some.items():
                touched.setdefault(switch, set()).update(rules)
                for key in rules:
                    self.wanted[switch].pop(key, None)
        for address, some in change.after.items():
            self._rules_of[address] = some
            for switch, rules in some.items():
                touched.setdefault(switch, set()).update(rules)
                self.wanted[switch].update(rules)
        for address, some_flows in change.flows.items():
            if some_flows:
                self._flows[address] = some_flows
            else:
                self._flows.pop(address, None)
                self._rules_of.pop(address, None)
        return FlowsChange(old_flows, change.after, change.before), touched

    def undo(self, undoing: FlowsChange) -> None:
        """Go back, with what `make` gave."""
        self._change_model(undoing.before, undoing.after, ())
        self.make(undoing)

    def _change_model(
        self, before: Mapping[str, _Rules], after: Mapping[str, _Rules], probes: Iterable[Probe]
    ) -> None:
        removed: dict[int, list[RuleKey]] = {}
        put: _Rules = {}
        for some in before.values():
            for switch, rules in some.items():
                removed.setdefault(switch, []).extend(rules)
        for some in after.values():
            for switch, rules in some.items():
                put.setdefault(switch, {}).update(rules)
        self._model.change(removed, put, probes)
