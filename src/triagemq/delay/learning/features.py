"""What a model may know of a queue: numbers from a sample and those before, by the same code in training and in use.

Shares of the width and seconds are preferred to bytes and rates: what was learned at one width holds at others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel
from triagemq.delay.queue_length import SMOOTHING, QueueDifference, QueueLength
from triagemq.delay.samples import INTERVAL_SECONDS, Increment, Increments, Sample, Samples, check_counters

WINDOW = 256
"""Samples looked back on: 51 s. Periods of up to a third of it can be seen."""

STEP = 32
"""Samples after which the period is looked for again."""

LEAST_STRENGTH = 0.3


def period_and_phase(series: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Period in samples, the peak's place in it (0 to 1) and the autocorrelation; None if there is no period.

    The period is the first high peak of the autocorrelation, computed by FFT (Wiener-Khinchin) and made finer by a
    parabola through its neighbours; the phase is that of the Fourier component of this period.

    >>> import numpy as np
    >>> peaks = np.zeros(200)
    >>> peaks[3::25] = 40.0
    >>> period, peak, strength = period_and_phase(peaks)
    >>> round(period), round(peak * period), strength > 0.8
    (25, 3, True)
    """
    centred = series - series.mean()
    power = float(centred @ centred)
    if power <= 1e-9 or len(series) < 8:
        return None
    spectrum = np.fft.rfft(centred, 2 * len(series))
    shared = np.arange(len(series), 0, -1)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[: len(series)] / power * (len(series) / shared)
    longest = len(series) // 3
    inner = np.arange(2, longest)
    peaks = inner[
        (correlation[inner] >= correlation[inner - 1]) & (correlation[inner] > correlation[inner + 1])
    ]
    if not len(peaks) or correlation[peaks].max() < LEAST_STRENGTH:
        return None
    # Multiples of the period are as high as the period itself; the first one that is nearly as high is it.
    best = int(peaks[np.argmax(correlation[peaks] >= 0.85 * correlation[peaks].max())])
    before, here, after = correlation[best - 1 : best + 2]
    bend = before - 2 * here + after
    period = best + (0.5 * (before - after) / bend if bend < 0 else 0.0)
    turns = np.exp(-2j * np.pi * np.arange(len(series)) / period)
    peak = float(np.mod(-np.angle(centred @ turns) / (2 * np.pi), 1.0))
    return float(period), peak, float(min(here, 1.0))


VERSION = 3
"""Raised whenever a feature changes its meaning, so that no model is used with other features than it learned from."""

LAGS = 5
SHORT, LONG = 5, 25
"""Windows of rolling figures: 1 s and 5 s."""


@dataclass(frozen=True, slots=True)
class SwitchConstants:
    """What is known of a switch and does not change (Shi et al., Table 1); NaN where it is not known."""

    buffer_bytes: float = math.nan
    largest_packet_bytes: float = math.nan
    smallest_delay_seconds: float = math.nan
    largest_routing_table: float = math.nan
    largest_mac_table: float = math.nan


# The columns of the history: what each window is remembered by.
_LOAD, _SENT, _DROPPED, _PACKETS, _SECONDS, _BYTES, _BACKLOG, _HELD = range(8)

_FOLLOWED = ("load", "sent", "dropped")
_BASE = (
    "width_bps",
    "window_seconds",
    "packet_bytes",
    "service_seconds",
    "packets_per_second",
    "packets_change",
    "dispersion",
    "chance_seconds",
    *_FOLLOWED,
    *(f"{name}_lag_{lag}" for name in _FOLLOWED for lag in range(1, LAGS + 1)),
    *(f"{name}_mean_{span}" for name in _FOLLOWED for span in (SHORT, LONG)),
    f"load_deviation_{SHORT}",
    f"load_deviation_{LONG}",
    "queued_seconds",
    "buffer_seconds",
    "room_seconds",
    "held_seconds",
    *(f"held_seconds_lag_{lag}" for lag in range(1, LAGS + 1)),
    *(f"held_seconds_mean_{span}" for span in (SHORT, LONG)),
    "held_less_queued_seconds",
    "smoothed_seconds",
    "held_less_smoothed_seconds",
    "leaving_seconds",
    "period_seconds",
    "phase",
    "period_strength",
    *(field.name for field in fields(SwitchConstants)),
)
_BACKLOG_ONLY = (
    "backlog_seconds",
    "backlog_packets",
    *(f"backlog_seconds_lag_{lag}" for lag in range(1, LAGS + 1)),
    f"backlog_seconds_mean_{SHORT}",
    "backlog_leaving_seconds",
)


def feature_names(counters: str) -> tuple[str, ...]:
    """The features of a set of counters, in the order of a row.

    >>> len(feature_names("openflow")), [name for name in feature_names("linux") if "backlog" in name][:2]
    (57, ['backlog_seconds', 'backlog_packets'])
    """
    return (*_BASE, *_BACKLOG_ONLY) if "backlog_bytes" in check_counters(counters) else _BASE


_OVER_LONG = ("packet_bytes", "service_seconds", "dispersion", "chance_seconds")
_OVER_WINDOW = ("period_seconds", "phase", "period_strength")


def windows_looked_at(counters: str) -> list[int]:
    """How many windows each feature is made from, the last one included.

    >>> known = dict(zip(feature_names("linux"), windows_looked_at("linux")))
    >>> [known[name] for name in ("load", "load_lag_2", "sent_mean_25", "dispersion", "backlog_seconds")]
    [1, 3, 25, 25, 1]
    """
    found = []
    for name in feature_names(counters):
        _, is_lag, lag = name.rpartition("_lag_")
        span = name.rpartition("_")[2]
        if is_lag:
            found.append(int(lag) + 1)
        elif span.isdigit():
            found.append(int(span))
        elif name in _OVER_LONG:
            found.append(LONG)
        elif name in _OVER_WINDOW:
            found.append(WINDOW)
        else:
            found.append(2 if name == "packets_change" else 1)
    return found


ANCHORS = MappingProxyType({"openflow": "leaving_seconds", "linux": "backlog_leaving_seconds"})
"""The feature that is a wait by itself. With the time a packet takes to be sent it is a delay, and trees learn what the
truth differs from it by: where they have seen nothing like it, this holds, and a queue can be longer than any they have
seen."""


def anchor_seconds(rows: NDArray[np.float32], counters: str) -> NDArray[np.float32]:
    """The anchor of each row: what to take off a delay before training, and to add to a prediction."""
    names = feature_names(counters)
    wait, service = (rows[..., names.index(name)] for name in (ANCHORS[counters], "service_seconds"))
    return np.nan_to_num(wait, nan=0.0) + np.nan_to_num(service, nan=0.0)


def feature_rows(samples: Samples, switch: SwitchConstants | None = None) -> NDArray[np.float32]:
    """A row of features for each sample of a queue: what `FeatureHistory` says as it is fed them."""
    history = FeatureHistory(samples.counters, switch)
    rows = np.empty((len(samples), len(feature_names(samples.counters))), np.float32)
    for number, sample in enumerate(samples):
        rows[number] = history.add(sample)
    return rows


class FeatureHistory:
    """The features of one queue, sample by sample.

    `add` gives the same array every time, filled anew. Unknown is NaN: all but the width with the first sample, lags
    before there are as many, periods before there is one. `gained` is what the last sample added, None if nothing.

    >>> history = FeatureHistory("openflow", SwitchConstants(buffer_bytes=100_000))
    >>> for window in range(3):
    ...     row = history.add(Sample(200_000_000 * window, 300_000 * window, 300 * window,
    ...                              200_000 * window, 200 * window, 0, width_bps=8e6))
    >>> known = dict(zip(feature_names("openflow"), row.tolist()))
    >>> [round(known[name], 3) for name in ("load", "sent", "load_lag_1", "load_lag_2", "queued_seconds")]
    [1.5, 1.0, 1.5, nan, 0.1]
    """

    def __init__(self, counters: str, switch: SwitchConstants | None = None) -> None:
        self._with_backlog = "backlog_bytes" in check_counters(counters)
        names = feature_names(counters)
        self._row = np.full(len(names), np.nan, np.float32)
        self._constants = switch or SwitchConstants()
        for field in fields(SwitchConstants):
            self._row[names.index(field.name)] = getattr(self._constants, field.name)
        self.gained: Increment | None = None
        self._increments = Increments()
        buffer_bytes = self._constants.buffer_bytes
        known_buffer = math.inf if math.isnan(buffer_bytes) else buffer_bytes
        self._queue, self._held = QueueLength(known_buffer), QueueDifference(known_buffer)
        self._smoothed_bytes = 0.0
        # Twice as long as what is looked back on, so that it seldom has to be moved to its begin.
        self._history = np.full((2 * WINDOW, 8), np.nan)
        self._end = 0
        self._seen = 0
        self._period: tuple[float, float, float] | None = None
        self._period_begin = 0

    def add(self, sample: Sample) -> NDArray[np.float32]:
        """The features with this sample; a sample that is not later than the one before changes nothing."""
        gained = self.gained = self._increments.after(sample)
        limited = math.isfinite(sample.width_bps)
        if gained is None:
            if not self._seen:
                self._row[0] = sample.width_bps if limited else np.nan
            return self._row
        self._queue.add(gained, sample.width_bps)
        can_send = sample.width_bps * gained.seconds / 8.0 if limited else math.nan
        backlog = math.nan
        if self._with_backlog and sample.backlog_bytes is not None and limited:
            backlog = 8.0 * sample.backlog_bytes / sample.width_bps
        self._held.add(gained, sample, self._queue)
        if gained.restarted or gained.silent:
            self._smoothed_bytes = 0.0
        weight = 1.0 - (1.0 - SMOOTHING) ** (gained.seconds / INTERVAL_SECONDS)
        self._smoothed_bytes += weight * (self._held.difference_bytes - self._smoothed_bytes)
        self._append(
            gained.bytes_in / can_send,
            gained.bytes_out / can_send,
            gained.drops / gained.packets_in if gained.packets_in else 0.0,
            gained.packets_in,
            gained.seconds,
            gained.bytes_in,
            backlog,
            8.0 * self._held.bytes / sample.width_bps if limited else math.nan,
        )
        period, phase, strength = self._place_in_period()
        _fill(
            self._row,
            self._history,
            self._end,
            min(self._seen, WINDOW),
            sample.width_bps if limited else math.nan,
            8.0 * self._queue.bytes / sample.width_bps if limited else math.nan,
            8.0 * self._smoothed_bytes / sample.width_bps if limited else math.nan,
            8.0 * self._constants.buffer_bytes / sample.width_bps if limited else math.nan,
            period,
            phase,
            strength,
            math.nan if sample.backlog_packets is None else float(sample.backlog_packets),
            self._with_backlog,
        )
        return self._row

    def _append(self, *window: float) -> None:
        if self._end == len(self._history):
            self._history[:WINDOW] = self._history[WINDOW:]
            self._end = WINDOW
        self._history[self._end] = window
        self._end += 1
        self._seen += 1

    def _place_in_period(self) -> tuple[float, float, float]:
        if self._seen % STEP == 0:
            length = min(self._seen, WINDOW)
            self._period_begin = self._seen - length
            self._period = period_and_phase(self._history[self._end - length : self._end, _PACKETS])
        if self._period is None:
            return math.nan, math.nan, math.nan
        period, peak, strength = self._period
        phase = ((self._seen - 1 - self._period_begin) / period - peak) % 1.0
        return period * INTERVAL_SECONDS, phase, strength


@kernel
def _mean(history: NDArray[np.float64], end: int, count: int, column: int, span: int) -> float:
    total, known = 0.0, 0
    for index in range(end - min(span, count), end):
        if not math.isnan(history[index, column]):
            total += history[index, column]
            known += 1
    return total / known if known else math.nan


@kernel
def _deviation(history: NDArray[np.float64], end: int, count: int, column: int, span: int) -> float:
    mean = _mean(history, end, count, column, span)
    total, known = 0.0, 0
    for index in range(end - min(span, count), end):
        if not math.isnan(history[index, column]):
            total += (history[index, column] - mean) ** 2
            known += 1
    return math.sqrt(total / known) if known else math.nan


@kernel
def _fill(
    row: NDArray[np.float32],
    history: NDArray[np.float64],
    end: int,
    count: int,
    width_bps: float,
    queued_seconds: float,
    smoothed_seconds: float,
    buffer_seconds: float,
    period_seconds: float,
    phase: float,
    strength: float,
    backlog_packets: float,
    with_backlog: bool,
) -> None:
    """Write a row in the order of the names; the constants of the switch are there already."""
    last = end - 1
    seconds, packets, size_bytes = 0.0, 0.0, 0.0
    windows = min(count, LONG)
    for index in range(end - windows, end):
        seconds += history[index, _SECONDS]
        packets += history[index, _PACKETS]
        size_bytes += history[index, _BYTES]
    rate = packets / seconds
    packet_bytes = size_bytes / packets if packets > 0.0 else math.nan
    service = 8.0 * packet_bytes / width_bps
    dispersion = math.nan
    if packets > 0.0 and windows > 1:
        dispersion = 0.0
        for index in range(end - windows, end):
            expected = rate * history[index, _SECONDS]
            dispersion += (history[index, _PACKETS] - expected) ** 2 / expected
        dispersion /= windows - 1
    # The wait of a G/D/1 queue, and no more than chance builds up in a window: as in estimators/model.py.
    load = rate * service
    chance = math.sqrt(2.0 * load * service * dispersion * INTERVAL_SECONDS / math.pi)
    if load < 1.0:
        chance = min(chance, 0.5 * load * service * dispersion / (1.0 - load))
    now_rate = history[last, _PACKETS] / history[last, _SECONDS]
    row[0], row[1], row[2], row[3] = width_bps, history[last, _SECONDS], packet_bytes, service
    row[4] = now_rate
    row[5] = now_rate - history[last - 1, _PACKETS] / history[last - 1, _SECONDS] if count > 1 else math.nan
    row[6], row[7] = dispersion, chance
    place = 8
    for column in range(3):
        row[place] = history[last, column]
        place += 1
    for column in range(3):
        for lag in range(1, LAGS + 1):
            row[place] = history[last - lag, column] if count > lag else math.nan
            place += 1
    for column in range(3):
        row[place] = _mean(history, end, count, column, SHORT)
        row[place + 1] = _mean(history, end, count, column, LONG)
        place += 2
    row[place] = _deviation(history, end, count, _LOAD, SHORT)
    row[place + 1] = _deviation(history, end, count, _LOAD, LONG)
    row[place + 2], row[place + 3], row[place + 4] = (
        queued_seconds,
        buffer_seconds,
        buffer_seconds - queued_seconds,
    )
    place += 5
    row[place] = history[last, _HELD]
    for lag in range(1, LAGS + 1):
        row[place + lag] = history[last - lag, _HELD] if count > lag else math.nan
    place += 1 + LAGS
    row[place] = _mean(history, end, count, _HELD, SHORT)
    row[place + 1] = _mean(history, end, count, _HELD, LONG)
    row[place + 2] = history[last, _HELD] - queued_seconds
    # A queue that borrows is gone sooner than its width says: it sends more, as the last second has shown.
    sent = max(1.0, _mean(history, end, count, _SENT, SHORT))
    row[place + 3] = smoothed_seconds
    row[place + 4] = history[last, _HELD] - smoothed_seconds
    row[place + 5] = max(0.0, smoothed_seconds) / sent
    place += 6
    row[place], row[place + 1], row[place + 2] = period_seconds, phase, strength
    place += 3 + 5
    if with_backlog:
        row[place] = history[last, _BACKLOG]
        row[place + 1] = backlog_packets
        for lag in range(1, LAGS + 1):
            row[place + 1 + lag] = history[last - lag, _BACKLOG] if count > lag else math.nan
        row[place + 2 + LAGS] = _mean(history, end, count, _BACKLOG, SHORT)
        row[place + 3 + LAGS] = history[last, _BACKLOG] / sent
