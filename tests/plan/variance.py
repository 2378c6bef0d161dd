"""What k-means minimises: the measure that splits into classes are compared by."""

from __future__ import annotations

import numpy as np

from triagemq.scenario import Floats, Integers

__all__ = ["within_class_variance"]


def within_class_variance(values: Floats, labels: Integers) -> float:
    """The sum of squared distances of values to the mean of their class: what k-means minimises.

    >>> within_class_variance(np.array([1.0, 3.0, 8.0]), np.array([1, 1, 0], dtype=np.int32))
    2.0
    """
    values, labels = np.asarray(values, dtype=np.float64), np.asarray(labels)
    if len(values) == 0:
        return 0.0
    # Distances from one member of the class first: adding raw values would lose the digits in which they
    # differ.
    member = np.zeros(int(labels.max()) + 1)
    member[labels] = values
    distance = values - member[labels]
    means = np.bincount(labels, distance) / np.maximum(np.bincount(labels), 1)
    return float(np.sum((distance - means[labels]) ** 2))
