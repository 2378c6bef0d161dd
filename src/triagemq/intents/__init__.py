"""What clients ask for: one record for one thing, from the client over REST and the store to the planner.

records     Utility, Wanted, Declared, and who announces them: SubscriberIntent, PublisherIntent. Their fields are the
            keys of the JSON, which `as_json` writes
rules       what a field may hold, said once in its annotation, for records made here and for pydantic

A record that exists is possible: nobody has to look again. The standard library only: it runs on devices as well.
"""

from triagemq.intents.records import (
    PUBLISHER,
    SUBSCRIBER,
    Declared,
    Intent,
    Name,
    PublisherIntent,
    PublisherTerms,
    Share,
    SubscriberIntent,
    SubscriberTerms,
    TopicFilter,
    TopicText,
    Utility,
    Wanted,
    utility_parts,
)

__all__ = [
    "PUBLISHER",
    "SUBSCRIBER",
    "Declared",
    "Intent",
    "Name",
    "PublisherIntent",
    "PublisherTerms",
    "Share",
    "SubscriberIntent",
    "SubscriberTerms",
    "TopicFilter",
    "TopicText",
    "Utility",
    "Wanted",
    "utility_parts",
]
