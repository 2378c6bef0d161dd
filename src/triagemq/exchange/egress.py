"""How datagrams leave the gateway through a data plane in the same process, which paces and ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triagemq.exchange.gateway.actions import SendControl, SendMany, SendPublish
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import fate
from triagemq.exchange.gateway.model.messages import Delivery
from triagemq.exchange.outlets import settle_copy
from triagemq.plan import Fate, FlowKey, OutgoingPacket, Treatment

if TYPE_CHECKING:
    from triagemq.plan import Egress


class EgressOutlet:
    """Through a data plane, which paces and ranks; `settled` is the OnFate that it has to be given."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._packets: list[OutgoingPacket] = []
        self._egress: Egress | None = None

    def attach(self, egress: Egress) -> None:
        """Send through this data plane from now on."""
        self._egress = egress

    def control(self, action: SendControl) -> None:
        """Marked as control: passes first, is never dropped."""
        endpoint, datagram, _ = action
        self._packets.append(OutgoingPacket(FlowKey(endpoint[0], endpoint[1]), datagram, True))

    def publish(self, action: SendPublish) -> None:
        """To one client."""
        session, delivery, datagram = action
        key = FlowKey(session.endpoint[0], session.endpoint[1])
        treatment = self._core.settings.policy.treatment(session.client_id, delivery.publication.topic)
        delivery.flow = treatment.flow_id, treatment.priority_class
        self._packets.append(OutgoingPacket(key, datagram, False, (session, delivery), treatment))

    def publish_many(self, action: SendMany) -> None:
        """To a group."""
        group, publication, datagram, places = action
        keys = group.prepared
        if keys is None:
            keys = group.prepared = [
                FlowKey(session.endpoint[0], session.endpoint[1]) for session, _ in group.members
            ]
        members, treatments = group.members, self._core.treatments(group, publication.topic)
        for place in range(len(members)) if places is None else places:
            member, treatment = members[place], treatments[place]
            token = (*member, (treatment.flow_id, treatment.priority_class)), publication
            self._packets.append(OutgoingPacket(keys[place], datagram, False, token, treatment))

    def rerank(self) -> None:
        """Have the data plane put what waits where the new plan wants it, if its queues are its own."""
        reclassify = getattr(self._egress, "reclassify", None)
        if reclassify is not None:
            reclassify(self._treatment_now)

    def _treatment_now(self, token: object) -> Treatment | None:
        """How a packet that still waits is to be treated by the orders of now."""
        assert isinstance(token, tuple)
        who, what = token
        if isinstance(what, Delivery):
            treatment = self._core.settings.policy.treatment(who.client_id, what.publication.topic)
            what.flow = treatment.flow_id, treatment.priority_class
            what.priority_class = treatment.priority_class
            return treatment
        return self._core.settings.policy.treatment(who[0].client_id, what.topic)

    def flush(self) -> None:
        """Hand everything over at once."""
        if self._packets and self._egress is not None:
            packets, self._packets = self._packets, []
            self._egress.send(packets)

    def close(self) -> None:
        """The data plane ends with the gateway: what it still holds is in flight, and says so now."""
        close = getattr(self._egress, "close", None)
        if close is not None:
            close()

    def settled(self, fates: Sequence[Fate]) -> None:
        """What the data plane did with some packets."""
        core = self._core
        for token, outcome, enqueued_ns, dequeued_ns in fates:
            assert isinstance(token, tuple)
            who, what = token
            times = (-1 if enqueued_ns is None else enqueued_ns, -1 if dequeued_ns is None else dequeued_ns)
            if isinstance(what, Delivery):
                fate(core, who, what, outcome, *times)
            else:
                session, subscription, flow = who
                settle_copy(core, session, subscription, what, outcome, times, flow)
