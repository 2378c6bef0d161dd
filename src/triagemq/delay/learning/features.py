"""The features of a queue: numbers from a sample and those before, by the same code in training and in use.

Shares of the width and seconds are preferred to bytes and rates: what was learned at one width holds at others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel
from triagemq.delay.samples import (
    INTERVAL_SECONDS,
    SMOOTHING,
    Increment,
    Increments,
    QueueDifference,
    QueueLength,
    Sample,
    Samples,
    check_counters,
)

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
    before, middle, after = correlation[best - 1 : best + 2]
    bend = before - 2 * middle + after
    period = best + (0.5 * (before - after) / bend if bend < 0 else 0.0)
    turns = np.exp(-2j * np.pi * np.arange(len(series)) / period)
    peak = float(np.mod(-np.angle(centred @ turns) / (2 * np.pi), 1.0))
    return float(period), peak, float(min(middle, 1.0))


VERSION = 3
"""Raised whenever a feature changes its meaning, so that no model is used with other features than it learned from."""

LAGS = 5
SHORT, LONG = 5, 25
"""Windows of rolling figures: 1 s and 5 s."""


@dataclass(frozen=True, slots=True)
class SwitchConstants:
    """The constants of a switch (Shi et al., Table 1); NaN where one is not known."""

    buffer_bytes: float = math.nan
    largest_packet_bytes: float = math.nan
    smallest_delay_seconds: float = math.nan
    largest_routing_table: float = math.nan
    largest_mac_table: float = math.nan

    @property
    def most_bytes(self) -> float:
        """The largest queue; infinite where the buffer is not known."""
        return math.inf if math.isnan(self.buffer_bytes) else self.buffer_bytes


# The columns of the history: what each window is remembered by.
_LOAD, _SENT, _DROPPED, _PACKETS, _SECONDS, _BYTES, _BACKLOG, _HELD = range(8)

# How a feature is made: a constant of the switch, a number of this sample, or from a column of the history.
_CONSTANT, _NUMBER, _LAG, _MEAN, _DEVIATION = range(5)

_GIVEN: tuple[str, ...] = ("width_bps", "queued_seconds", "smoothed_seconds", "buffer_seconds")
_GIVEN += ("period_seconds", "phase", "period_strength", "backlog_packets")
_COMPUTED: tuple[str, ...] = (
    "window_seconds",
    "packet_bytes",
    "service_seconds",
    "packets_per_second",
    "packets_change",
)
_COMPUTED += ("dispersion", "chance_seconds", "room_seconds", "held_less_queued_seconds")
_COMPUTED += ("held_less_smoothed_seconds", "leaving_seconds", "backlog_leaving_seconds")
_NUMBERS = (*_GIVEN, *_COMPUTED)

_Features = dict[str, tuple[int, int, int]]
"""Of each feature, in the order of a row: how it is made, of which column, and from how many windows."""


def _numbers(windows: int, *names: str) -> _Features:
    return {name: (_NUMBER, _NUMBERS.index(name), windows) for name in names}


def _lags(name: str, column: int) -> _Features:
    return {f"{name}_lag_{lag}": (_LAG, column, lag + 1) for lag in range(1, LAGS + 1)}


def _means(name: str, column: int, *spans: int) -> _Features:
    return {f"{name}_mean_{span}": (_MEAN, column, span) for span in spans}


_BASE: _Features = {
    **_numbers(1, "width_bps", "window_seconds"),
    **_numbers(LONG, "packet_bytes", "service_seconds"),
    **_numbers(1, "packets_per_second"),
    **_numbers(2, "packets_change"),
    **_numbers(LONG, "dispersion", "chance_seconds"),
    **{name: (_LAG, column, 1) for column, name in enumerate(("load", "sent", "dropped"))},
    **_lags("load", _LOAD) | _lags("sent", _SENT) | _lags("dropped", _DROPPED),
    **_means("load", _LOAD, SHORT, LONG) | _means("sent", _SENT, SHORT, LONG),
    **_means("dropped", _DROPPED, SHORT, LONG),
    **{f"load_deviation_{span}": (_DEVIATION, _LOAD, span) for span in (SHORT, LONG)},
    **_numbers(1, "queued_seconds", "buffer_seconds", "room_seconds"),
    "held_seconds": (_LAG, _HELD, 1),
    **_lags("held_seconds", _HELD) | _means("held_seconds", _HELD, SHORT, LONG),
    **_numbers(1, "held_less_queued_seconds", "smoothed_seconds"),
    **_numbers(1, "held_less_smoothed_seconds", "leaving_seconds"),
    **_numbers(WINDOW, "period_seconds", "phase", "period_strength"),
    **dict.fromkeys((field.name for field in fields(SwitchConstants)), (_CONSTANT, 0, 1)),
}
_WITH_BACKLOG: _Features = {
    **_BASE,
    "backlog_seconds": (_LAG, _BACKLOG, 1),
    **_numbers(1, "backlog_packets"),
    **_lags("backlog_seconds", _BACKLOG) | _means("backlog_seconds", _BACKLOG, SHORT),
    **_numbers(1, "backlog_leaving_seconds"),
}


def _features(counters: str) -> _Features:
    return _WITH_BACKLOG if "backlog_bytes" in check_counters(counters) else _BASE


def feature_names(counters: str) -> tuple[str, ...]:
    """The features of a set of counters, in the order of a row.

    >>> len(feature_names("openflow")), [name for name in feature_names("linux") if "backlog" in name][:2]
    (57, ['backlog_seconds', 'backlog_packets'])
    """
    return tuple(_features(counters))


def windows_looked_at(counters: str) -> list[int]:
    """How many windows each feature is made from, the last one included.

    >>> known = dict(zip(feature_names("linux"), windows_looked_at("linux")))
    >>> [known[name] for name in ("load", "load_lag_2", "sent_mean_25", "dispersion", "backlog_seconds")]
    [1, 3, 25, 25, 1]
    """
    return [windows for *_, windows in _features(counters).values()]


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
    """A row of features for each sample of a queue: the rows of `FeatureHistory` as it is fed them."""
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
        names = feature_names(counters)
        self._features = np.array(list(_features(counters).values()))
        self._numbers = np.full(len(_NUMBERS), np.nan)
        self._row = np.full(len(names), np.nan, np.float32)
        self._constants = switch or SwitchConstants()
        for field in fields(SwitchConstants):
            self._row[names.index(field.name)] = getattr(self._constants, field.name)
        self.gained: Increment | None = None
        self._increments = Increments()
        most_bytes = self._constants.most_bytes
        self._queue, self._held = QueueLength(most_bytes), QueueDifference(most_bytes)
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
        width_bps = sample.width_bps if math.isfinite(sample.width_bps) else math.nan
        if gained is None:
            if not self._seen:
                self._row[0] = width_bps
            return self._row
        self._queue.add(gained, sample.width_bps)
        self._held.add(gained, sample, self._queue)
        if gained.restarted or gained.silent:
            self._smoothed_bytes = 0.0
        weight = 1.0 - (1.0 - SMOOTHING) ** (gained.seconds / INTERVAL_SECONDS)
        self._smoothed_bytes += weight * (self._held.difference_bytes - self._smoothed_bytes)
        can_send = width_bps * gained.seconds / 8.0
        self._append(
            gained.bytes_in / can_send,
            gained.bytes_out / can_send,
            gained.drops / gained.packets_in if gained.packets_in else 0.0,
            gained.packets_in,
            gained.seconds,
            gained.bytes_in,
            math.nan if sample.backlog_bytes is None else 8.0 * sample.backlog_bytes / width_bps,
            8.0 * self._held.bytes / width_bps,
        )
        self._numbers[: len(_GIVEN)] = (
            width_bps,
            8.0 * self._queue.bytes / width_bps,
            8.0 * self._smoothed_bytes / width_bps,
            8.0 * self._constants.buffer_bytes / width_bps,
            *self._place_in_period(),
            math.nan if sample.backlog_packets is None else sample.backlog_packets,
        )
        _fill(self._row, self._features, self._numbers, self._history, self._end, min(self._seen, WINDOW))
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
    features: NDArray[np.int64],
    numbers: NDArray[np.float64],
    history: NDArray[np.float64],
    end: int,
    count: int,
) -> None:
    """Compute the numbers that are not given, and write a row; the constants of the switch are there already."""
    last = end - 1
    width_bps, queued_seconds, smoothed_seconds, buffer_seconds = (
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
    )
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
    # The wait of a G/D/1 queue, and no more than chance builds up in a window: as in lab.queue_delay.
    load = rate * service
    chance = math.sqrt(2.0 * load * service * dispersion * INTERVAL_SECONDS / math.pi)
    if load < 1.0:
        chance = min(chance, 0.5 * load * service * dispersion / (1.0 - load))
    now_rate = history[last, _PACKETS] / history[last, _SECONDS]
    change = now_rate - history[last - 1, _PACKETS] / history[last - 1, _SECONDS] if count > 1 else math.nan
    # A queue that borrows is empty sooner than at its width: it sends more, as the last second has shown.
    sent = max(1.0, _mean(history, end, count, _SENT, SHORT))
    computed = (
        history[last, _SECONDS],
        packet_bytes,
        service,
        now_rate,
        change,
        dispersion,
        chance,
        buffer_seconds - queued_seconds,
        history[last, _HELD] - queued_seconds,
        history[last, _HELD] - smoothed_seconds,
        max(0.0, smoothed_seconds) / sent,
        history[last, _BACKLOG] / sent,
    )
    for place in range(len(computed)):
        numbers[len(numbers) - len(computed) + place] = computed[place]
    for place in range(len(row)):
        kind, column, span = features[place]
        if kind == _NUMBER:
            row[place] = numbers[column]
        elif kind == _LAG:
            row[place] = history[end - span, column] if count >= span else math.nan
        elif kind == _MEAN:
            row[place] = _mean(history, end, count, column, span)
        elif kind == _DEVIATION:
            row[place] = _deviation(history, end, count, column, span)
