"""Events larger than the MTU: the packets they are cut into, and the wait until the last one is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.overload import SERIES_LIMIT, remainder, remainder_slope
from triagemq.theory.validate import LARGEST, broadcast, per_row, reals, scalar_or_array
from triagemq.theory.waits import CopyBatches, Work, check_batches, mean_waits

# e^-700 is the last power that float64 holds: an event this much smaller than the payload has one packet.
_LARGEST_EXPONENT = 700.0
_SMALLEST_SURVIVAL = 1e-300


@dataclass(frozen=True, slots=True)
class FragmentSizes:
    """Moments of the packets of one event, in bytes on the wire; scalars, or arrays of one element per topic.

    theory.md section 2: an event larger than the MTU is a batch of packets. `wire_bytes_*` are those of the
    whole event, overhead of every packet included; `packet_bytes_second_moment` is the mean over packets.
    `first_packet_product` is the mean product of an event's first packet and the whole of it, `single_packet_bytes`
    the mean of an event's bytes where it is one packet, and 0 where it is several.

    All are of the events that survive links on the way here, which lose packets: a share `survival` of them, the
    smaller ones first.

    >>> fragment_sizes(1000.0, "constant", 1500.0, 40.0).packets_per_event == 1.0
    np.True_
    """

    packets_per_event: NDArray[np.float64]
    wire_bytes_mean: NDArray[np.float64]
    wire_bytes_scv: NDArray[np.float64]
    packet_bytes_second_moment: NDArray[np.float64]
    last_packet_bytes_mean: NDArray[np.float64]
    first_packet_bytes_mean: NDArray[np.float64]
    first_packet_product: NDArray[np.float64]
    single_packet_bytes: NDArray[np.float64]
    survival: NDArray[np.float64]

    @classmethod
    def of(
        cls, *, wire_bytes_variance: NDArray[np.float64], packet_squares: NDArray[np.float64], **moments: Any
    ) -> FragmentSizes:
        """From the other moments, the variance of an event's bytes, and the sum of the squares of its packets'."""
        mean = moments["wire_bytes_mean"]
        scv = np.zeros_like(mean)
        np.divide(wire_bytes_variance, mean**2, out=scv, where=mean > 0.0)
        second_moment = packet_squares / moments["packets_per_event"]
        moments |= {"wire_bytes_scv": scv, "packet_bytes_second_moment": second_moment}
        return cls(**{name: scalar_or_array(np.asarray(values)) for name, values in moments.items()})


@dataclass(frozen=True, slots=True)
class FirstPackets:
    """Transmission times of copies that come in random order, where the first to come may start out of turn.

    `mean` is that of an event's first packet, `product` the mean of it times the whole event's, `single` the mean
    time of an event where it is one packet and 0 where it is several; scalars, or one per subscription.
    """

    mean: ArrayLike
    product: ArrayLike
    single: ArrayLike


def fragment_sizes(
    mean_bytes: ArrayLike,
    kind: Literal["constant", "exponential"],
    mtu_bytes: ArrayLike,
    overhead_bytes: ArrayLike,
    packet_survival: ArrayLike = 1.0,
) -> FragmentSizes:
    """Packets of an event of constant or exponential size without overhead; an infinite MTU never cuts.

    An event of `size` bytes takes n = max(1, ceil(size/payload)) packets, payload = mtu - overhead, and
    size + n overhead bytes on the wire (theory.md section 2, M^[X]/G/1). Exponential sizes have no memory:
    n is geometric, P(n > j) = exp(-j payload/mean), and the last part is an exponential cut at the
    payload, independent of n. An event that needs n packets, each of which survives with `packet_survival` s, survives
    with s^n; weighted with that a geometric law is geometric again. Arguments broadcast.

    >>> sizes = fragment_sizes(3000.0, "constant", 1540.0, 40.0)
    >>> float(sizes.packets_per_event), float(sizes.wire_bytes_mean), float(sizes.last_packet_bytes_mean)
    (2.0, 3080.0, 1540.0)
    """
    if kind not in ("constant", "exponential"):
        raise ParameterError("kind", f"is {kind!r}; must be 'constant' or 'exponential'")
    mean, mtu, overhead, survives = broadcast(
        mean_bytes=reals("mean_bytes", mean_bytes, positive=kind == "exponential"),
        mtu_bytes=reals("mtu_bytes", mtu_bytes, positive=True, infinite=True),
        overhead_bytes=reals("overhead_bytes", overhead_bytes),
        packet_survival=reals("packet_survival", packet_survival, high=1.0),
    )
    payload = _payload(mtu, overhead)
    cut = _exponential if kind == "exponential" else _constant
    return cut(mean, payload, overhead, survives)


def fragment_sizes_from_values(
    values_bytes: ArrayLike,
    weights: ArrayLike,
    mtu_bytes: float,
    overhead_bytes: float,
    packet_survival: float = 1.0,
) -> FragmentSizes:
    """Packets of an event whose size takes `values_bytes` with probabilities proportional to `weights`.

    The moments of fragment_sizes (theory.md section 2, M^[X]/G/1) summed over the values.

    >>> sizes = fragment_sizes_from_values([500.0, 2500.0], [1, 1], 1000.0, 0.0)
    >>> float(sizes.packets_per_event), float(sizes.wire_bytes_mean), float(sizes.last_packet_bytes_mean)
    (2.0, 1500.0, 500.0)
    """
    values = per_row("values_bytes", values_bytes)
    weight = per_row("weights", weights, values.size)
    total = float(np.sum(weight))
    if total <= 0.0:
        raise ParameterError("weights", "sum to 0; at least one value needs a positive weight")
    mtu = reals("mtu_bytes", mtu_bytes, positive=True, infinite=True)
    overhead = reals("overhead_bytes", overhead_bytes)
    survives = reals("packet_survival", packet_survival, high=1.0)
    for parameter, array in (("mtu_bytes", mtu), ("overhead_bytes", overhead), ("packet_survival", survives)):
        if array.ndim != 0:
            raise ParameterError(parameter, f"has shape {array.shape}; must be a scalar")
    each = _constant(values, np.broadcast_to(_payload(mtu, overhead), values.shape), overhead, survives)
    share = weight / total
    survival = float(np.sum(share * each.survival))
    # Of events that never survive every size is as good as the other.
    probability = share * each.survival / survival if survival > 0.0 else share
    mean = _average(probability, each.wire_bytes_mean)
    return FragmentSizes.of(
        packets_per_event=_average(probability, each.packets_per_event),
        wire_bytes_mean=mean,
        wire_bytes_variance=_average(probability, (each.wire_bytes_mean - mean) ** 2),
        packet_squares=_average(probability, each.packets_per_event * each.packet_bytes_second_moment),
        last_packet_bytes_mean=_average(probability, each.last_packet_bytes_mean),
        first_packet_bytes_mean=_average(probability, each.first_packet_bytes_mean),
        first_packet_product=_average(probability, each.first_packet_product),
        single_packet_bytes=_average(probability, each.single_packet_bytes),
        survival=np.asarray(survival),
    )


def fragmented_work(
    arrival_rates: ArrayLike,
    event_mean: ArrayLike,
    event_scv: ArrayLike,
    packet_rate: ArrayLike,
    packet_second_moment: ArrayLike,
    last_packet_mean: ArrayLike,
    classes: ArrayLike,
    *,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    queues: ArrayLike | None = None,
    random_order: FirstPackets | None = None,
    own_event_mean: ArrayLike | None = None,
) -> tuple[Work, CopyBatches]:
    """What events bring to their queues when they are cut into packets: for `mean_waits` and `sojourn_times`.

    theory.md section 2, M^[X]/G/1 (derivation in waits.py): with B an event's whole transmission time,
    U_k = (1/2 sum_{class<=k} lambda E[B^2] + 1/2 sum_{class>k} packet_rate E[S_packet^2] + copies) /
    (1 - sigma_k) and the wait until the last packet starts is
    (U_k + b_r E[B_r] + E[B_r] - last_packet_mean_r)/(1 - sigma_{k-1}): a higher class waits for one packet of a lower
    one, not for its event. An event's packets stay together in their class, and copies share the event's size. With
    one packet per event this is priority_waits.

    `event_mean`, `event_scv`: of B; `packet_rate`: the subscription's packets per second;
    `packet_second_moment`: mean over packets of the squared transmission time; `random_order`: what the first packets
    take, where copies come in random order; the rest as priority_waits. Where links behind the port spare the smaller
    events, `own_event_mean`, `last_packet_mean` and the mean and single of `random_order` are of the spared ones.
    """
    rates = per_row("arrival_rates", arrival_rates)
    count = rates.size
    event = per_row("event_mean", event_mean, count, positive=True)
    variability = per_row("event_scv", event_scv, count)
    packets = per_row("packet_rate", packet_rate, count)
    packet_square = per_row("packet_second_moment", packet_second_moment, count)
    last = per_row("last_packet_mean", last_packet_mean, count, positive=True)
    own = event
    if own_event_mean is not None:
        own = per_row("own_event_mean", own_event_mean, count, positive=True)
    too_long = last > own * (1.0 + 1e-9)
    if too_long.any():
        row = int(np.argmax(too_long))
        raise ParameterError(
            "last_packet_mean", f"element {row} is {last[row]}; must not exceed its event_mean {own[row]}"
        )
    batches = check_batches(count, classes, batch_topics, keep, queues, random_order=random_order is not None)
    second_moment = (1.0 + variability) * event**2
    first = random_order or FirstPackets(0.0, 0.0, 0.0)
    work = Work(
        rates=rates,
        mean=event,
        second_moment=second_moment,
        copy_product=second_moment,
        blocking=0.5 * packets * packet_square,
        first_product=per_row("first packet product", first.product, count),
        own_mean=own,
        before_last=np.maximum(own - last, 0.0),
        first_mean=per_row("first packet mean", first.mean, count),
        single_mean=per_row("single packet mean", first.single, count),
        packet_rates=packets,
    )
    return work, batches


def fragmented_waits(*arguments: ArrayLike, **options: Any) -> NDArray[np.float64]:
    """Mean time from an event's arrival until its last packet starts, of what `fragmented_work` takes.

    Events of 2 seconds in two packets of 1 second each:

    >>> fragmented_waits([0.25, 0.125], 2.0, 0.0, [0.5, 0.25], 1.0, 1.0, [0, 1])
    array([2.25, 8. ])
    """
    return mean_waits(*fragmented_work(*arguments, **options))


def _payload(mtu: NDArray[np.float64], overhead: NDArray[np.float64]) -> NDArray[np.float64]:
    payload = mtu - overhead
    if not np.all(payload > 0.0):
        first = np.unravel_index(int(np.argmin(payload > 0.0)), payload.shape)
        raise ParameterError(
            "mtu_bytes", f"is {mtu[first]} with overhead_bytes {overhead[first]}; leaves no room for payload"
        )
    # The largest size that passes the checks fits in this payload, and unlike infinity it can be multiplied.
    return np.minimum(payload, LARGEST)


def _constant(
    size: NDArray[np.float64],
    payload: NDArray[np.float64],
    overhead: NDArray[np.float64],
    survives: NDArray[np.float64],
) -> FragmentSizes:
    packets = np.maximum(np.ceil(size / payload), 1.0)
    last = size - (packets - 1.0) * payload + overhead
    wire = size + packets * overhead
    single = packets == 1.0
    first = np.where(single, last, payload + overhead)
    return FragmentSizes.of(
        packets_per_event=packets,
        wire_bytes_mean=wire,
        wire_bytes_variance=np.zeros_like(size),
        packet_squares=(packets - 1.0) * (payload + overhead) ** 2 + last**2,
        last_packet_bytes_mean=last,
        first_packet_bytes_mean=first,
        first_packet_product=first * wire,
        single_packet_bytes=np.where(single, last, 0.0),
        survival=survives**packets,
    )


def _exponential(
    mean: NDArray[np.float64],
    payload: NDArray[np.float64],
    overhead: NDArray[np.float64],
    survives: NDArray[np.float64],
) -> FragmentSizes:
    exponent = np.minimum(payload / mean, _LARGEST_EXPONENT)
    payload = np.minimum(payload, _LARGEST_EXPONENT * mean)
    # Two forms, because each loses its digits where the other is exact: mean - payload/(e^x - 1) for
    # a payload near or above the mean, the series for a payload far below it (the last part is then
    # almost uniform over the payload).
    near = exponent <= SERIES_LIMIT
    small = np.where(near, exponent, 0.0)
    more = 1.0 / np.expm1(exponent)
    last_part = np.where(near, payload * (0.5 - remainder(small)), mean - payload * more)
    last_variance = np.where(
        near, payload**2 * remainder_slope(small), mean**2 - payload**2 * (1.0 + more) * more
    )
    last = last_part + overhead
    last_square = last_variance + last**2
    full = payload + overhead
    # Survivors: P(n > j) = (s e^-x)^j.
    rarer = exponent - np.log(np.maximum(survives, _SMALLEST_SURVIVAL))
    more_packets = 1.0 / np.expm1(rarer)
    packets = 1.0 + more_packets
    one_packet = -np.expm1(-rarer)
    wire = last + more_packets * full
    return FragmentSizes.of(
        packets_per_event=packets,
        wire_bytes_mean=wire,
        wire_bytes_variance=last_variance + full**2 * packets * more_packets,
        packet_squares=more_packets * full**2 + last_square,
        last_packet_bytes_mean=last,
        first_packet_bytes_mean=one_packet * last + (1.0 - one_packet) * full,
        first_packet_product=one_packet * last_square + full * np.maximum(wire - one_packet * last, 0.0),
        single_packet_bytes=one_packet * last,
        survival=survives * (-np.expm1(-exponent)) / one_packet,
    )


def _average(probability: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sum(probability * values))
