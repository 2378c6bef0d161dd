"""The policy file: YAML, checked as a whole, with line, field and fix of each mistake, as scenario files are."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from triagemq.coordinator.policy.record import ClientRole, ClientRule, OperatorPolicy
from triagemq.errors import ParameterError, Problem, ScenarioError
from triagemq.intents import SubscriptionIntent, Utility
from triagemq.scenario.conditions import USUAL_PROFILE
from triagemq.scenario.files.document import (
    TRUTHS,
    FileEntry,
    Name,
    ScenarioFile,
    SubscriptionEntry,
    WorthProfile,
    keys_of,
)
from triagemq.scenario.files.explain import described, entry_error, filter_error, parse_number, refuse_errors
from triagemq.scenario.files.loading import text_of
from triagemq.scenario.files.reading import LinedFile


def _number_in(lowest: float, highest: float, example: str, *, whole: bool = False) -> BeforeValidator:
    def read(given: Any) -> Any:
        number = parse_number(given) if type(given) is str else given
        if number is None or not isinstance(number, int | float) or not lowest <= number <= highest:
            raise entry_error("", f"is {described(given)}", f"write a number from 0, such as {example}")
        if whole and number != int(number):
            raise entry_error("", f"is {described(given)}", f"write a whole number, such as {example}")
        return int(number) if whole else float(number)

    return BeforeValidator(read)


class RoleEntry(FileEntry):
    """What clients of a role may claim by themselves."""

    budget: Annotated[float, _number_in(0, 1e12, "200")] | None = None
    rank: Annotated[int, _number_in(0, 1_000, "1", whole=True)] = 0
    may: list[Name] | None = None
    may_reserve: Annotated[
        bool, BeforeValidator(lambda given: TRUTHS.get(given, given) if type(given) is str else given)
    ] = False


class TermsEntry(SubscriptionEntry):
    """The terms of a subscription; those of one line of text, such as log:10;max_rate=2, may stand alone."""

    @model_validator(mode="before")
    @classmethod
    def _line_of_terms(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        try:
            terms = SubscriptionIntent.parse("terms", given)
        except ParameterError as error:
            raise entry_error("", str(error), "write such as log:10, or log:10;max_rate=2") from None
        found = {name: value for name, value in terms.as_json().items() if name in keys_of(cls)}
        found["utility"] = terms.utility.as_json()
        return found

    @model_validator(mode="after")
    def _rank_of_the_role(self) -> TermsEntry:
        if self.role_rank is not None:
            raise entry_error(
                "role_rank", "is that of a role", "write rank: under the role, and remove it here"
            )
        return self


class ClientEntry(FileEntry):
    """Which clients, and what holds for them."""

    id: Name = "*"
    address: Name | None = None
    user: Name | None = None
    role: Name | None = None
    port: Name | None = None
    subscriptions: dict[Name, TermsEntry] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _address_of_a_network(self) -> ClientEntry:
        try:
            ipaddress.ip_network(self.address or "0.0.0.0/0", strict=False)
        except ValueError:
            what = f"is {self.address}, no address or network"
            raise entry_error("address", what, "write such as 192.0.2.7 or 192.0.2.0/24") from None
        return self


class PolicyFile(FileEntry):
    """All of a policy file."""

    roles: dict[Name, RoleEntry] = Field(default_factory=dict)
    clients: list[ClientEntry] = Field(default_factory=list)
    phases: dict[Name, WorthProfile] = Field(default_factory=dict)


def is_policy(path: str | os.PathLike[str]) -> bool:
    """Is it a policy, and no scenario, by the sections that it has? False for what cannot be read.

    >>> is_policy("no-such-file.yaml")
    False
    """
    try:
        root = LinedFile(text_of(Path(path)), str(path)).root
    except ScenarioError:
        return False
    sections = set(root) if isinstance(root, dict) else set()
    return bool(sections & set(keys_of(PolicyFile))) and not sections & set(keys_of(ScenarioFile))


def check_policy(path: str | os.PathLike[str]) -> list[Problem]:
    """What is wrong with a policy file, in order of lines; empty if nothing is."""
    try:
        load_policy(path)
    except ScenarioError as error:
        return list(error.problems)
    return []


def load_policy(path: str | os.PathLike[str]) -> OperatorPolicy:
    """The policy in a file; ScenarioError with Problems, each with line, field and fix."""
    return parse_policy(text_of(Path(path)), str(path))


def parse_policy(text: str, file: str = "<text>") -> OperatorPolicy:
    """The policy in a YAML text. `file` is what problems call it.

    >>> policy = parse_policy('''
    ... roles: {crew: {budget: 200, rank: 1}}
    ... clients: [{id: "ff-*", role: crew, subscriptions: {"#": log:0.5;max_rate=2}}, {id: "*", role: crew}]
    ... phases: {search: {}, suppression: {building/water: 4}}
    ... ''')
    >>> policy.clients[0].subscriptions[0].utility.weight, policy.phases["suppression"]
    (0.5, {'building/water': 4.0})
    """
    lines = LinedFile(text, file)
    entry = lines.checked(PolicyFile)
    roles = {name: _role(lines, name, each) for name, each in entry.roles.items()}
    rules = tuple(_rule(lines, number, each, entry.roles) for number, each in enumerate(entry.clients))
    if roles and not any(each.fits_everyone for each in rules):
        what = "has no entry for every other client"
        lines.report_at(
            ("clients",), what, f"add as the last one - {{id: '*', role: {next(reversed(roles))}}}"
        )
    for name, phase in entry.phases.items():
        if name == USUAL_PROFILE:
            lines.report_at(("phases", name), "is the phase without factors", "choose another name")
        for topic in phase:
            if (error := filter_error(topic)) is not None:
                lines.report_at(("phases", name, topic), *error)
    refuse_errors(lines)
    return OperatorPolicy(roles, rules, {name: dict(phase) for name, phase in entry.phases.items()})


def _role(lines: LinedFile, name: str, entry: RoleEntry) -> ClientRole:
    for number, topic in enumerate(entry.may or ()):
        if (error := filter_error(topic)) is not None:
            lines.report_at(("roles", name, "may", number), *error)
    may = None if entry.may is None else tuple(entry.may)
    return ClientRole(name, entry.budget, entry.rank, may, entry.may_reserve)


def _rule(lines: LinedFile, number: int, entry: ClientEntry, roles: Mapping[str, RoleEntry]) -> ClientRule:
    place = ("clients", number)
    if entry.role is None and roles:
        lines.report_at((*place, "role"), "is missing", f"add role: {next(iter(roles))}")
    elif entry.role is not None and entry.role not in roles:
        lines.report_at((*place, "role"), *lines.unknown("role", entry.role, roles, "roles"))
    terms = []
    for topic, each in entry.subscriptions.items():
        at = (*place, "subscriptions", topic)
        if (error := filter_error(topic)) is not None:
            lines.report_at(at, *error)
            continue
        try:
            terms.append(_terms(topic, each))
        except ParameterError as mistake:
            lines.report_at(at, str(mistake), "write terms as `triage sub` takes them")
    return ClientRule(entry.role or "", entry.id, entry.address, entry.user, entry.port, tuple(terms))


def _terms(topic: str, entry: SubscriptionEntry) -> SubscriptionIntent:
    known = {each.name for each in fields(SubscriptionIntent)} - {"topic", "utility"}
    more = {name: getattr(entry, name) for name in keys_of(type(entry)) if name in known}
    utility = entry.utility
    worth = Utility(utility.shape, utility.weight, utility.threshold, utility.freshness_seconds)
    return SubscriptionIntent(
        topic, worth, **{name: value for name, value in more.items() if value is not None}
    )
