"""Stores results: of runs, streams, sweeps and reproductions alike.

    OUT/manifest-<version>.json                 what readers follow: the newest; what it does not list is not there for
                                                them
    OUT/<table>/token=<token>/run=<n>/part-*    Parquet files, written straight to where they stay
    OUT/_work/token=<token>/                    what is needed only while tables are made
    OUT/.lock                                   on this machine's disks: held while a command writes
    OUT/.lease-<owner>-<n>                      elsewhere: renewed while a command writes

`places` are URIs and what can be done there, on this machine's disks and on every file system that Arrow
knows; `lease` keeps a second command out where there are no locks; `store` has the manifest, which says which files
belong to which run, publishes, has Spark write tables and counts their rows.

The manifest has a mark, and so have the tokens of folders. A command writes into folders with a new token, and at the
end publishes a manifest that lists its files. The newest manifest and the files it lists are therefore whole at any
moment, also after kill -9, and the next command removes unlisted files under tokens with the mark. Only four kinds of
file are ever removed, and none of them can be foreign: one that a manifest of this store has listed, one that Spark or
this package named inside such a folder, an older manifest with the same mark, and a lease that has expired. Folders are
removed when they are empty.

The trace keeps its own files (trace/parts): it is written row by row, by processes that have neither Spark nor a
store, into a new directory each time, and never replaces anything.
"""

from triagemq.pipeline.store.places import InputFile, Location
from triagemq.pipeline.store.store import (
    PublishedRun,
    TableFile,
    TablesManifest,
    TableStore,
    current_manifest,
)

__all__ = [
    "InputFile",
    "Location",
    "PublishedRun",
    "TableFile",
    "TableStore",
    "TablesManifest",
    "current_manifest",
]
