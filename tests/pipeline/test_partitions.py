"""Few rows stay in this process, as Arrow: what Spark does with many must come out of it."""

from __future__ import annotations

import pyarrow as pa

from triagemq.pipeline.partitions import joined

KEYS = ("run", "port", "moment_ns")


def rows(name: str, *of: tuple[int, int | None, int, str]) -> pa.Table:
    columns = [list(column) for column in zip(*of, strict=True)]
    return pa.table(
        {
            "run": pa.array(columns[0], pa.int32()),
            "port": pa.array(columns[1], pa.int64()),
            "moment_ns": pa.array(columns[2], pa.int64()),
            name: columns[3],
        }
    )


OWN = rows(
    "own",
    (0, 2, 1 << 60, "a"),
    (0, None, 5, "b"),
    (1, -1 << 40, 5, "c"),
    (0, 2, 1 << 60, "d"),
    (0, 2, 6, "e"),
)
OTHERS = rows(
    "other", (1, -1 << 40, 5, "x"), (0, 2, 1 << 60, "y"), (0, None, 5, "z"), (0, 2 + (1 << 32), 6, "w")
)


def test_rows_are_joined_by_any_number_of_keys_of_any_size_and_nothing_is_equal_to_null() -> None:
    found = joined(OWN, OTHERS, KEYS)
    assert isinstance(found, pa.Table)
    assert found.select(["own", "other"]).to_pydict() == {
        "own": ["a", "b", "c", "d", "e"],
        "other": ["y", None, "x", "y", None],
    }


def test_others_that_no_row_is_equal_to_come_last_in_a_full_join() -> None:
    found = joined(OWN, OTHERS, KEYS, "full")
    assert isinstance(found, pa.Table)
    last = found.slice(len(OWN))
    assert set(last["other"].to_pylist()) == {"z", "w"}
    assert last["own"].null_count == len(last)
    assert set(last["port"].to_pylist()) == {None, 2 + (1 << 32)}


def test_rows_without_others_have_their_columns_and_nothing_in_them() -> None:
    found = joined(OWN, OTHERS.slice(0, 0), KEYS)
    assert isinstance(found, pa.Table)
    assert found.select(["own", "other"]).to_pydict() == {"own": [*"abcde"], "other": [None] * 5}
