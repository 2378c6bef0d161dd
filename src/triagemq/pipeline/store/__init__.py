"""Stores results: of runs, streams, sweeps and reproductions alike.

    OUT/manifest-<version>.json                 what readers follow: the newest; what it does not list is not there for
                                                them
    OUT/<table>/token=<token>/run=<n>/part-*    Parquet files, written straight to where they stay
    OUT/_work/token=<token>/                    what is needed only while tables are made
    OUT/.lock                                   on this machine's disks: held while a command writes
    OUT/.lease-<owner>-<n>                      elsewhere: renewed while a command writes

`places` are URIs and what can be done there, on this machine's disks and on every file system that Spark or Arrow
knows; `manifest` says which files belong to which run; `lease` keeps a second command out where there are no locks;
`store` publishes, and has Spark write tables and counts their rows.

A command first publishes a manifest that names the token it is going to write under, and at the end one that lists its
files. The newest manifest and the files it lists are therefore whole at any moment, also after kill -9, and the next
command knows what to clear away. Only four kinds of file are ever removed, and none of them can be foreign:
one that a manifest of this store has listed, one that Spark or this package named inside a folder that bears a token
of such a manifest, an older manifest with the same mark, and a lease that has expired. Folders are
removed when they are empty.

The trace keeps its own files (trace/parts): it is written row by row, by processes that have neither Spark nor a
store, into a new directory each time, and never replaces anything.
"""

from triagemq.pipeline.store.manifest import (
    PublishedRun,
    TableFile,
    TablesManifest,
    current_manifest,
)
from triagemq.pipeline.store.places import InputFile, Location
from triagemq.pipeline.store.store import TableStore

__all__ = [
    "InputFile",
    "Location",
    "PublishedRun",
    "TableFile",
    "TableStore",
    "TablesManifest",
    "current_manifest",
]
