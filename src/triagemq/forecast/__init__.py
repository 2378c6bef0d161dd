"""Theory composed along the path of every subscription: what a plan will do, in milliseconds."""

from triagemq.forecast.doubts import REASONS, Reason
from triagemq.forecast.forecast import forecast
from triagemq.forecast.model import Forecast
from triagemq.forecast.planning import plan_ahead
from triagemq.forecast.sampling import best_forecast
from triagemq.forecast.summary import (
    figures_by_class,
    finite_or_none,
    subscription_rows,
    summary,
    utility_figures,
)
from triagemq.forecast.words import explanation

__all__ = [
    "REASONS",
    "Forecast",
    "Reason",
    "best_forecast",
    "explanation",
    "figures_by_class",
    "finite_or_none",
    "forecast",
    "plan_ahead",
    "subscription_rows",
    "summary",
    "utility_figures",
]
