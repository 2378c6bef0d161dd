"""`python -m triagemq`: the same as `triage`."""

from triagemq.cli import main

main()
