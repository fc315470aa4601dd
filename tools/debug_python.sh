#!/usr/bin/env bash
# debug_python.sh PYTHON: prints the path of a debug build of CPython of the same version, which loads the extension modules that PYTHON loads.
#
# Looked at in this order: $MANYTAIL_DEBUG_PYTHON, python3.X-dbg and python3.Xd on PATH. Otherwise the machine's own apt is asked for its package
# python3.X-dbg, which root may install.
#
# Standard output carries the path alone. Exit status 3: it cannot be had here; the last line on standard error says why.
set -euo pipefail

readonly WHAT="debug build of CPython"
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

readonly VERSION=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
readonly PACKAGE=python$VERSION-dbg

# Not sys.gettotalrefcount alone: a free-threaded build loads other modules.
fits() { "$1" -c "import sys, sysconfig as s; sys.exit(not (s.get_config_var('Py_DEBUG') and not s.get_config_var('Py_GIL_DISABLED') and '%d.%d' % sys.version_info[:2] == '$VERSION'))" 2>/dev/null; }

find_existing() {
    local python
    for python in "$PACKAGE" "python${VERSION}d"; do
        if python=$(command -v "$python") && fits "$python"; then echo "$python"; return; fi
    done
    return 1
}

install_package() {
    [[ -n $(command -v apt-get) ]] || unavailable "there is none on PATH, and no apt-get to install $PACKAGE"
    [[ $(id -u) -eq 0 ]] || unavailable "$PACKAGE must be installed first, which needs root"
    say "installing $PACKAGE"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$PACKAGE"; } >&2 ||
        unavailable "apt-get could not install $PACKAGE"
}

if [[ -n ${MANYTAIL_DEBUG_PYTHON:-} ]]; then
    fits "$MANYTAIL_DEBUG_PYTHON" || unavailable "MANYTAIL_DEBUG_PYTHON=$MANYTAIL_DEBUG_PYTHON is not one of CPython $VERSION"
    echo "$MANYTAIL_DEBUG_PYTHON"
elif ! find_existing; then
    install_package
    find_existing || unavailable "$PACKAGE has none"
fi
