"""The period of the packets that come to a queue, by their spectrum, and where in it the queue is.

The paper takes ARIMA for it, which has the order of the process to guess and is fitted anew for each queue; the power
spectrum of the last samples needs neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def track_periods(counts: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Period in samples, phase and strength at each sample, each from the samples before; NaN for none."""
    length = len(counts)
    period, phase, strength = (np.full(length, np.nan) for _ in range(3))
    for end in range(STEP, length + 1, STEP):
        begin = max(0, end - WINDOW)
        found = period_and_phase(counts[begin:end])
        if found is None:
            continue
        # What was found holds from the last sample looked at until it is looked for again.
        valid = np.arange(end - 1, min(end - 1 + STEP, length))
        period[valid] = found[0]
        phase[valid] = np.mod((valid - begin) / found[0] - found[1], 1.0)
        strength[valid] = found[2]
    return period, phase, strength
