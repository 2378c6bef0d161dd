"""/v1/policy and /v1/phase: who may claim what, and the phase of the incident."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from triagemq.coordinator.api.requests import Body, Injected, Operator, Reader
from triagemq.coordinator.api.views import why
from triagemq.coordinator.control_plane import ControlPlane

router = APIRouter(prefix="/v1", tags=["operators"])

_LONGEST_POLICY = 4_000_000


class PolicyBody(Body):
    """The YAML of a policy, and why it is to hold."""

    policy: Annotated[str, Field(max_length=_LONGEST_POLICY)]
    reason: Annotated[str, Field(max_length=500)] = ""


class PolicyAnswer(BaseModel):
    """The policy in force as it was given, by whom and when; empty where there is none."""

    policy: str
    author: str
    decided_ns: int
    roles: list[str]
    phases: list[str]


class PhaseBody(Body):
    """The name of a phase, and why it begins."""

    phase: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=500)] = ""


class PhaseAnswer(BaseModel):
    """The phase of now with its factors on worth, by whom and since when, and the names of all phases."""

    phase: str
    factors: dict[str, float]
    author: str
    decided_ns: int
    phases: list[str]


@router.get("/policy")
async def read_policy(caller: Reader, coordinator: Injected) -> PolicyAnswer:
    """The policy in force."""
    return _policy(coordinator)


@router.put("/policy")
async def change_policy(body: PolicyBody, caller: Operator, coordinator: Injected) -> PolicyAnswer:
    """Another policy in place of the one in force, from now on; plans again. The decision is recorded."""
    await coordinator.policy.set_policy(body.policy, _author(caller.label), why(caller, body.reason))
    return _policy(coordinator)


@router.get("/phase")
async def read_phase(caller: Reader, coordinator: Injected) -> PhaseAnswer:
    """The phase of now, and all that there are."""
    return _phase(coordinator)


@router.put("/phase")
async def change_phase(body: PhaseBody, caller: Operator, coordinator: Injected) -> PhaseAnswer:
    """Switch to another phase; plans again. The decision is recorded."""
    await coordinator.policy.set_phase(body.phase, _author(caller.label), why(caller, body.reason))
    return _phase(coordinator)


def _author(label: str) -> str:
    return label or "an operator"


def _policy(coordinator: ControlPlane) -> PolicyAnswer:
    policy, decided = coordinator.policy.policy, coordinator.policy.decided
    return PolicyAnswer(
        policy=decided.value,
        author=decided.author,
        decided_ns=decided.decided_ns,
        roles=list(policy.roles),
        phases=list(policy.phases),
    )


def _phase(coordinator: ControlPlane) -> PhaseAnswer:
    now, decided = coordinator.policy, coordinator.policy.decided_phase
    return PhaseAnswer(
        phase=now.phase,
        factors=dict(now.factors),
        author=decided.author,
        decided_ns=decided.decided_ns,
        phases=list(now.phases),
    )
