"""Theory composed along the path of every subscription: what a plan will do, in milliseconds."""

from triagemq.forecast.doubts import REASONS, Reason
from triagemq.forecast.forecast import forecast
from triagemq.forecast.model import Forecast
from triagemq.forecast.planning import plan_ahead
from triagemq.forecast.sampling import best_forecast
from triagemq.forecast.summary import finite_or_none, subscription_rows, summary, utility_figures
from triagemq.forecast.words import explain_with_forecast

__all__ = [
    "REASONS",
    "Forecast",
    "Reason",
    "best_forecast",
    "explain_with_forecast",
    "finite_or_none",
    "forecast",
    "plan_ahead",
    "subscription_rows",
    "summary",
    "utility_figures",
]
