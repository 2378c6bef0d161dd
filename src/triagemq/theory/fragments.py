"""Events larger than the MTU: the packets they are cut into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.overload import NEAR_ONE
from triagemq.theory.validate import LARGEST, broadcast, per_row, reals, scalar_or_array

# e^-700 is the last power that float64 holds: an event this much smaller than the payload has one packet.
_LARGEST_EXPONENT = 700.0
_SMALLEST_SURVIVAL = 1e-300


@dataclass(frozen=True, slots=True)
class FragmentSizes:
    """Moments of the packets of one event, in bytes on the wire; scalars, or arrays of one element per topic.

    theory.md section 2: an event larger than the MTU is a batch of packets. `wire_bytes_*` are those of the
    whole event, overhead of every packet included; `packet_bytes_second_moment` is the mean over packets.

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
        survival=np.asarray(survival),
    )


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
    return FragmentSizes.of(
        packets_per_event=packets,
        wire_bytes_mean=wire,
        wire_bytes_variance=np.zeros_like(size),
        packet_squares=(packets - 1.0) * (payload + overhead) ** 2 + last**2,
        last_packet_bytes_mean=last,
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
    # mean - payload/(e^x - 1) loses its digits for a payload far below the mean: the last part is then almost uniform
    # over the payload.
    near = exponent <= 10 * NEAR_ONE
    small = np.where(near, exponent, 0.0)
    more = 1.0 / np.expm1(exponent)
    last_part = np.where(near, payload * (0.5 - small / 12 + small**3 / 720), mean - payload * more)
    last_variance = np.where(
        near, payload**2 * (1 / 12 - small**2 / 240), mean**2 - payload**2 * (1.0 + more) * more
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
        survival=survives * (-np.expm1(-exponent)) / one_packet,
    )


def _average(probability: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sum(probability * values))
