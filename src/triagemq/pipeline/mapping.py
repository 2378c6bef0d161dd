"""The mapping file of a foreign log: which column is the time, what the topic is called, how large an event is.

time: {column: date, format: "yyyy-MM-dd HH:mm:ss"}     # or {column: ts, unit: s}; or ISO 8601 without either
topic: "office/{sensor}"                                # {column} stands for its text
value: reading                                          # narrow log: one value a row
publisher: "{device}"

Every key stands in docs/reference/logs.md with an example.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from triagemq.errors import MappingError

LARGEST_SIZE_BYTES = 268_435_455
"""The largest packet of MQTT."""

TEMPLATE_COLUMN = re.compile(r"\{([^{}]*)\}")


Column = Annotated[str, Field(min_length=1)]
Moment = Annotated[datetime, Field(strict=False)]
"""A day is the moment at which it begins."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TimeColumn(_Entry):
    """Where the time is, and how it is written: a pattern of Spark's, a number of units since 1970, or ISO 8601.

    What is before `earliest`, or not before `latest`, is set aside.
    """

    column: str
    format: str | None = None
    unit: Literal["s", "ms", "us", "ns"] | None = None
    zone: str = "UTC"
    earliest: Moment | None = None
    latest: Moment | None = None

    @model_validator(mode="after")
    def _one_way(self) -> TimeColumn:
        if self.format is not None and self.unit is not None:
            raise ValueError("has both format and unit; keep one")
        earliest, latest = self.bounds_ns
        if earliest is not None and latest is not None and earliest >= latest:
            raise ValueError("has an earliest that is not before its latest")
        return self

    @property
    def bounds_ns(self) -> tuple[int | None, int | None]:
        """`earliest` and `latest` in nanoseconds since 1970; without a zone of their own they are in this one."""
        return self._nanoseconds(self.earliest), self._nanoseconds(self.latest)

    def _nanoseconds(self, moment: datetime | None) -> int | None:
        if moment is None:
            return None
        if moment.tzinfo is None:
            try:
                moment = moment.replace(tzinfo=UTC if self.zone == "UTC" else ZoneInfo(self.zone))
            except (KeyError, OSError, ValueError) as error:
                raise ValueError(f"has no zone {self.zone!r}; write one as in Europe/Berlin") from error
        return round(moment.timestamp() * 1e6) * 1000


class SizeColumn(_Entry):
    """A column with the size of each event in bytes."""

    column: str


class Mapping(_Entry):
    """The meaning of a log's columns. One of `value` and `values` may be given, or neither if sizes are known."""

    time: Annotated[
        TimeColumn, BeforeValidator(lambda given: {"column": given} if isinstance(given, str) else given)
    ]
    topic: Annotated[str, Field(min_length=1)]
    value: Column | None = None
    values: dict[str, str] | list[Column] | None = None
    numbers: bool = False
    size_bytes: Annotated[int, Field(ge=0, le=LARGEST_SIZE_BYTES)] | SizeColumn | None = None
    largest_size_bytes: Annotated[int, Field(gt=0, le=2**31 - 1)] = LARGEST_SIZE_BYTES
    publisher: Annotated[str, Field(min_length=1)] = "log"
    topics: list[str] | None = None
    backwards_seconds: Annotated[float, Field(ge=0)] = 0.0
    format: Literal["csv", "jsonl", "parquet"] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    columns: list[Column] | None = None
    path: Annotated[str, Field(min_length=1)] | None = None
    recursive: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Mapping:
        if self.value is not None and self.values is not None:
            raise ValueError(
                "has both value and values; keep value for one reading a row, values for several"
            )
        if self.value is None and self.values is None and self.size_bytes is None:
            raise ValueError("has neither a value nor the size of events; add value: COLUMN")
        if isinstance(self.values, list) and "{column}" not in self.topic:
            raise ValueError(
                'values is a list, so the topic must hold {column}, as in topic: "office/{column}"'
            )
        if not self.header and self.columns is None and self.format in (None, "csv"):
            raise ValueError(
                "has no header, so the names of the columns must be listed: columns: [time, ...]"
            )
        for key, names in (("columns", self.columns or []), ("path", self.path_columns)):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"names {', '.join(twice)} twice in {key}; every column needs a name of its own"
                )
        return self

    @property
    def path_columns(self) -> list[str]:
        """The names of the parts of a file's path."""
        return template_columns(self.path or "")

    @property
    def path_pattern(self) -> str:
        """A regular expression, of Python's and Java's, for the end of a path; a group for each of its columns."""
        literal = TEMPLATE_COLUMN.split(self.path or "")[::2]
        return "(?:^|/)" + "([^/]+)".join(re.escape(part) for part in literal) + "$"

    @property
    def looks_into_folders(self) -> bool:
        """Whether the files of a directory are also those of the directories in it."""
        return self.recursive or "/" in (self.path or "")

    @property
    def topics_of_values(self) -> dict[str, str]:
        """Template of the topic for each value column; one entry with the empty name for a log without values."""
        if isinstance(self.values, dict):
            return dict(self.values)
        if self.values is not None:
            return {column: self.topic.replace("{column}", column) for column in self.values}
        return {self.value or "": self.topic}

    def needed_columns(self) -> list[str]:
        """Columns that must be in the log itself: what a path is called need not."""
        needed = [self.time.column, *template_columns(self.publisher)]
        for column, topic in self.topics_of_values.items():
            needed += [column] if column else []
            needed += template_columns(topic)
        if isinstance(self.size_bytes, SizeColumn):
            needed.append(self.size_bytes.column)
        return [column for column in dict.fromkeys(needed) if column not in self.path_columns]

    @property
    def fingerprint(self) -> str:
        """Changes when the mapping means something else."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=16).hexdigest()


def template_columns(template: str) -> list[str]:
    """The columns that a template refers to.

    >>> template_columns("building/{floor}/{room}")
    ['floor', 'room']
    """
    return TEMPLATE_COLUMN.findall(template)


def load_mapping(path: str | Path) -> Mapping:
    """The mapping in a YAML file; MappingError names the field that is wrong."""
    path = Path(path)
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MappingError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MappingError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    try:
        return Mapping.model_validate(content if content is not None else {})
    except ValidationError as error:
        problems = (
            f"{path}: {'.'.join(map(str, each['loc'])) or 'mapping'}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        )
        raise MappingError("\n".join(problems)) from error
