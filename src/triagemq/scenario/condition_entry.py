"""What an entry of `conditions` may hold: one thing that changes at a given time of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from triagemq.scenario.document import Entry, Name, NotNegative, Positive, Share, mistake

__all__ = ["USUAL_PROFILE", "ConditionEntry"]

USUAL_PROFILE = "usual"
"""The worth that the subscriptions of a file state themselves."""

STATES = {"publisher": ("fails", "returns"), "subscriber": ("joins", "leaves"), "link": ("fails", "returns")}

CHANGES = {
    "port": ("bandwidth_bps", "error_rate"),
    "publisher": ("state", "error_rate"),
    "subscriber": ("state", "error_rate"),
    "link": ("state",),
    "topic": ("rate_per_second", "rate_factor"),
    "worth_profile": (),
}
"""What may change, by what an entry names. A topic may stand beside the publisher that is meant."""

EXAMPLES = {"bandwidth_bps": "160000", "rate_per_second": "20"}


class ConditionEntry(Entry):
    """Something that happens at a given time of a run, to a port, publisher, subscriber, link or topic, or to worth."""

    at_seconds: NotNegative = Field(examples=["20"])
    port: Name | None = Field(None, examples=["PORT"])
    publisher: Name | None = Field(None, examples=["PUBLISHER"])
    subscriber: Name | None = Field(None, examples=["SUBSCRIBER"])
    link: list[Name] | None = Field(None, min_length=2, max_length=2, examples=["[SWITCH, SWITCH]"])
    topic: Name | None = Field(None, examples=["TOPIC"])
    worth_profile: Name | None = Field(None, examples=["PROFILE"])
    bandwidth_bps: Positive | None = Field(None, examples=["160000"])
    error_rate: Share | None = Field(None, examples=["0.05"])
    rate_per_second: Positive | None = Field(None, examples=["20"])
    rate_factor: Positive | None = Field(None, examples=["5"])
    state: Literal["fails", "returns", "joins", "leaves"] | None = Field(None, examples=["fails"])

    @model_validator(mode="after")
    def _one_change_of_one_thing(self) -> ConditionEntry:
        named = [key for key in CHANGES if getattr(self, key) is not None]
        if named == ["publisher", "topic"]:
            named = ["topic"]
        if len(named) != 1:
            what = f"names {' and '.join(named)}" if named else "does not say what changes"
            choice = ", ".join([*CHANGES][:-1])
            raise mistake("", what, f"write one of {choice} or worth_profile in each entry")
        (subject,) = named
        possible = CHANGES[subject]
        given = [key for key in _KEYS if getattr(self, key) is not None]
        for key in given:
            if key not in possible:
                raise mistake(key, f"means nothing for a {subject}", f"remove it, or name a {_holders(key)}")
        if possible and not given:
            example = EXAMPLES.get(possible[0]) or " or ".join(STATES[subject])
            raise mistake(possible[0], "is missing", f"add {possible[0]}: {example}")
        if len(given) > 1:
            raise mistake(given[1], f"stands beside {given[0]}", "write one change in each entry")
        if self.state is not None and self.state not in STATES[subject]:
            raise mistake("state", f"is {self.state}", f"write {' or '.join(STATES[subject])}")
        return self


_KEYS = tuple(dict.fromkeys(key for keys in CHANGES.values() for key in keys))


def _holders(key: str) -> str:
    return " or ".join(subject for subject, keys in CHANGES.items() if key in keys)
