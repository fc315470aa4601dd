#!/usr/bin/env bash
# Prints the folder that holds the headers of relacy, the model checker of tests/native/model, and fetches them first if there are none.
#
# They are Debian's package relacy-dev (headers only, of Debian 13 whatever the machine has), unpacked into ${XDG_CACHE_HOME:-~/.cache}/manytail; nothing
# is installed, the machine's own apt configuration is only read. MANYTAIL_RELACY names a folder of your own instead.
# Exit status 3: it cannot be had here; the last line on standard error says why.
set -euo pipefail

readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/manytail
readonly FOUND=$CACHE/relacy/usr/include
readonly SUITE=trixie

say() { printf '%s\n' "$*" >&2; }
unavailable() { say "no relacy: $*"; exit 3; }

# The mirror of the machine's own Debian entry.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '/\/debian\/?$/ { print; exit }'
}

fetch() { # into the working directory
    local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    uri=$(debian_mirror)
    [[ -n $uri ]] || unavailable "apt knows no Debian mirror to take it from"
    mkdir -p apt/state/lists/partial apt/cache/archives/partial
    {
        printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$uri" "$SUITE"
        if [[ -e $keyring ]]; then printf 'Signed-By: %s\n' "$keyring"; fi
    } >apt/debian.sources
    local own=(-o "Dir::State=$PWD/apt/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$PWD/apt/cache"
        -o "Dir::Etc::SourceList=$PWD/apt/debian.sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null
        -o Dir::Etc::PreferencesParts=/dev/null -o "APT::Sandbox::User=$(id -un)")
    apt-get "${own[@]}" update >&2 || unavailable "the index of Debian $SUITE cannot be read"
    apt-get "${own[@]}" download relacy-dev >&2 || unavailable "Debian $SUITE gives no relacy-dev"
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
