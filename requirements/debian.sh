#!/bin/sh
# Installs the Debian packages listed in a file that are not there yet, when this is root on a Debian machine.
set -eu
missing=$(grep -v '^#' "$1" | while read -r package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
done)
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086
    apt-get -qq install --no-install-recommends -y $missing >/dev/null
else
    echo "not installed (needs root on Debian): $missing" >&2
fi
