#!/usr/bin/env bash
# Prints the folder that holds the headers of relacy, the model checker of tests/native/model, and fetches them first if there are none.
#
# They are Debian's package relacy-dev (headers only, of Debian 13 whatever the machine has), unpacked into ${XDG_CACHE_HOME:-~/.cache}/manytail; nothing
# is installed, the machine's own apt configuration is only read. MANYTAIL_RELACY names a folder of your own instead.
# Exit status 3: it cannot be had here; the last line on standard error says why.
set -euo pipefail

readonly WHAT=relacy
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

readonly FOUND=$CACHE/relacy/usr/include

fetch() { # into the working directory
    debian_apt_open deb
    debian_apt download relacy-dev >&2 || unavailable "Debian $SUITE gives no relacy-dev"
    dpkg-deb -x relacy-dev_*.deb unpacked
}

if [[ -n ${MANYTAIL_RELACY:-} ]]; then
    [[ -e $MANYTAIL_RELACY/relacy/relacy.hpp ]] || unavailable "MANYTAIL_RELACY=$MANYTAIL_RELACY has no relacy/relacy.hpp"
    echo "$MANYTAIL_RELACY"
    exit
fi
if [[ ! -e $FOUND/relacy/relacy.hpp ]]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || unavailable "it is not in the cache, and without apt it is not fetched here"
    mkdir -p "$CACHE"
    exec 9>"$CACHE/lock"
    flock 9
    if [[ ! -e $FOUND/relacy/relacy.hpp ]]; then
        work=$(mktemp -d "$CACHE/relacy.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        (cd "$work" && fetch)
        rm -rf "$CACHE/relacy"
        mv "$work/unpacked" "$CACHE/relacy"
    fi
fi
echo "$FOUND"
