#!/bin/sh
# Renews the hash-pinned requirement files. No index address is written into them.
set -eu
cd "$(dirname "$0")/.."
uv=$1
compile() {
    "$uv" pip compile --quiet --upgrade --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header "$@"
}
echo uv | compile - -o requirements/uv.txt
echo "hatchling
editables" | compile - -o requirements/build.txt
compile pyproject.toml --extra lab -o requirements/lab.txt
compile --group test -c requirements/lab.txt -o requirements/test.txt
compile --group peers -c requirements/lab.txt -o requirements/peers.txt
compile --group docs -c requirements/lab.txt -o requirements/docs.txt
