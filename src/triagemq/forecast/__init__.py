"""Theory composed along the path of every subscription: what a plan will do, in milliseconds.

In come a scenario and a plan, out goes a Forecast (`model`): `prediction` follows the path, `upstream` from publishers
to brokers, then `downstream` over switches and `ports`. Each adds its error estimates; `promised` is traffic without
a broker. `summary` says it in few figures and in words, `stored` stores it with a run.
"""

from triagemq.forecast.model import REASONS, Forecast, Reason
from triagemq.forecast.prediction import forecast
from triagemq.forecast.stored import StoredForecast
from triagemq.forecast.summary import (
    explanation,
    figures_by_class,
    starved,
    subscription_rows,
    summary,
    utility_figures,
)

__all__ = [
    "REASONS",
    "Forecast",
    "Reason",
    "StoredForecast",
    "explanation",
    "figures_by_class",
    "forecast",
    "starved",
    "subscription_rows",
    "summary",
    "utility_figures",
]
