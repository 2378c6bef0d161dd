"""How a process reads its configuration: one JSON file, checked as a whole before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from triagemq.errors import ParameterError

__all__ = ["load_config"]

Config = TypeVar("Config")


def load_config(kind: type[Config], path: Path | str) -> Config:
    """Read and check a dataclass by its annotations; ParameterError names the file, the field and what is wrong.

    What was read is not repeated: it may be a secret.

    >>> load_config(object, "no-such-file.json")
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: no-such-file.json: No such file or directory
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_json(Path(path).read_bytes(), strict=True, extra="forbid")
    except OSError as error:
        raise ParameterError(str(path), error.strerror or str(error)) from None
    except ValidationError as error:
        place, problem = _in_words(adapter, error.errors(include_input=False, include_url=False)[0])
        raise ParameterError(f"{path}: {place}" if place else str(path), problem) from None


def _in_words(adapter: TypeAdapter[Any], mistake: Mapping[str, Any]) -> tuple[str, str]:
    place = ".".join(str(part) for part in mistake["loc"])
    match mistake["type"]:
        case "json_invalid":
            return "", f"is not JSON: {mistake['ctx']['error']}"
        case "dataclass_type" if not place:
            return "", "must be a JSON object"
        case "missing":
            return place, "is missing"
        case "unexpected_keyword_argument":
            known = (
                f"; there are {', '.join(adapter.json_schema()['properties'])}" if "." not in place else ""
            )
            return place, f"there is no such field{known}"
    cause = mistake.get("ctx", {}).get("error")
    if isinstance(cause, ParameterError):
        return ".".join(filter(None, (place, cause.parameter))), cause.problem
    return place, str(mistake["msg"])
