#!/usr/bin/env bash
# Prints the path of a free-threaded CPython, and builds one first if there is none: build_freethreaded.sh [VERSION].
#
# Without a version, looked at in this order: $MANYTAIL_FREETHREADED, python3.15t, 3.14t and 3.13t on PATH, the same in the cache; with one, as 3.14,
# that one on PATH and in the cache. Otherwise it is built (3.13, if no version is said) from Debian's source package into
# ${XDG_CACHE_HOME:-~/.cache}/manytail, once per machine, in about two minutes. The machine's own apt configuration is only read: the source package
# comes through an apt state of its own. Root is needed only for -dev packages that are missing.
#
# Of 3.14 and 3.15 Debian's mirrors served the index but not the sources on 2026-11-28, no registry has binaries, and these end with status 3.
#
# Standard output carries the path alone. Exit status 3: it cannot be had here; the last line on standard error says why.
set -euo pipefail

readonly KNOWN=(3.15 3.14 3.13)
readonly ASKED=${1:-}
if [[ $# -gt 1 || (-n $ASKED && " ${KNOWN[*]} " != *" $ASKED "*) ]]; then
    echo "build_freethreaded.sh: $* (expected: one of ${KNOWN[*]}, or nothing)" >&2
    exit 2
fi
readonly VERSION=${ASKED:-3.13}

# Flags of a make that runs this script are not meant for CPython's: it needs the built-in rules that ours turns off.
unset MAKEFLAGS MFLAGS MAKELEVEL

readonly WHAT="free-threaded CPython $VERSION"
SUITE=trixie
[[ $VERSION == 3.13 ]] || SUITE=sid
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

readonly PREFIX=$CACHE/cpython-${VERSION}t
readonly HEADERS=(libssl-dev zlib1g-dev libffi-dev libsqlite3-dev libbz2-dev liblzma-dev dpkg-dev)
readonly WITHOUT=(_ctypes_test _test{buffer,clinic,clinic_limited,externalinspection,importmultiple,internalcapi,limitedcapi}
    _test{multiphase,singlephase} _xxtestfuzz xxlimited xxlimited_35 xxsubtype)

is_freethreaded() { "$1" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' 2>/dev/null; }

is_whole() { # of a version in the cache
    local python=$CACHE/cpython-$1t/bin/python$1t
    is_freethreaded "$python" && "$python" -c 'import ssl, zlib, ctypes, sqlite3, bz2, lzma, _testcapi'
}

find_existing() {
    local python version versions=("${KNOWN[@]}")
    [[ -z $ASKED ]] || versions=("$ASKED")
    if [[ -z $ASKED && -n ${MANYTAIL_FREETHREADED:-} ]]; then
        is_freethreaded "$MANYTAIL_FREETHREADED" || unavailable "MANYTAIL_FREETHREADED=$MANYTAIL_FREETHREADED is not one"
        echo "$MANYTAIL_FREETHREADED"
        return
    fi
    for version in "${versions[@]}"; do
        if python=$(command -v "python${version}t") && is_freethreaded "$python"; then echo "$python"; return; fi
    done
    for version in "${versions[@]}"; do
        if [[ -e $CACHE/cpython-${version}t/complete ]] && is_whole "$version" 2>/dev/null; then
            echo "$CACHE/cpython-${version}t/bin/python${version}t"
            return
        fi
    done
    return 1
}

missing_headers() {
    local package
    for package in "${HEADERS[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
    done
}

install_headers() {
    local missing
    mapfile -t missing < <(missing_headers)
    [[ ${#missing[@]} -eq 0 ]] && return
    [[ $(id -u) -eq 0 ]] || unavailable "${missing[*]} must be installed first, which needs root"
    say "installing ${missing[*]}"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >&2 ||
        unavailable "apt-get could not install ${missing[*]}"
}

fetch_source() { # into the working directory
    debian_apt_open deb-src
    debian_apt source --download-only "python$VERSION" >&2 || unavailable "Debian $SUITE gives no source of python$VERSION"
    # apt has checked the sums against the signed index; dpkg-source would ask for the maintainer's own key.
    dpkg-source --no-check -x "python$VERSION"_*.dsc source >&2
}

build() {
    local work
    work=$(mktemp -d "$CACHE/build.XXXXXX")
    trap "rm -rf '$work'" EXIT
    cd "$work"
    fetch_source
    cd source
    say "building CPython $VERSION without the GIL into $PREFIX (about two minutes; log: $CACHE/build.log)"
    # Without ensurepip: Debian leaves the wheels that it unpacks out of the source. Not made, because they take half of
    # the time: debug information, bytecode of the whole library (-h: compileall prints its help and ends), and modules
    # for CPython's own tests but _testcapi, with which tests/core/test_out_of_memory.py makes allocations fail.
    local off=("${WITHOUT[@]/#/py_cv_module_}")
    { env "${off[@]/%/=n/a}" ./configure -q --disable-gil --with-ensurepip=no --prefix="$PREFIX" OPT="-DNDEBUG -fwrapv -O3 -Wall" &&
        make -j"$(nproc)" && make install COMPILEALL_OPTS=-h; } >"$CACHE/build.log" 2>&1 ||
        unavailable "its build failed, see $CACHE/build.log"
    is_whole "$VERSION" 2>>"$CACHE/build.log" || unavailable "what was built has a GIL or lacks modules, see $CACHE/build.log"
    touch "$PREFIX/complete"
}

find_existing && exit
command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || unavailable "none is on PATH, and without apt it is not built here"
mkdir -p "$CACHE"
exec 9>"$CACHE/lock"
flock 9 # two builds at once share the prefix
find_existing && exit
install_headers
(build)
find_existing
