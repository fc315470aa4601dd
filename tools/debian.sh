# Sourced by the scripts that take a package of Debian, whatever the machine has: apt with a state of its own, so that the machine's own
# configuration is only read and nothing is installed. The sourcing script sets WHAT, the thing that it prints the path of, and SUITE if Debian
# 13 has not got it.

readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/manytail
readonly SUITE=${SUITE:-trixie}

say() { printf '%s\n' "$*" >&2; }

# Exit status 3: it cannot be had here, for the reason given.
unavailable() { say "no $WHAT: $*"; exit 3; }

# The mirror of the machine's own Debian entry.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '/\/debian\/?$/ { print; exit }'
}

# debian_apt_open deb|deb-src: makes the working directory an apt state that knows those packages; debian_apt then runs apt-get on it.
debian_apt_open() {
    local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    uri=$(debian_mirror)
    [[ -n $uri ]] || unavailable "apt knows no Debian mirror to take it from"
    mkdir -p apt/state/lists/partial apt/cache/archives/partial
    {
        printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\n' "$1" "$uri" "$SUITE"
        if [[ -e $keyring ]]; then printf 'Signed-By: %s\n' "$keyring"; fi
    } >apt/debian.sources
    debian_apt update >&2 || unavailable "the index of Debian $SUITE cannot be read"
}

debian_apt() {
    apt-get -o "Dir::State=$PWD/apt/state" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$PWD/apt/cache" \
        -o "Dir::Etc::SourceList=$PWD/apt/debian.sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null \
        -o Dir::Etc::PreferencesParts=/dev/null -o "APT::Sandbox::User=$(id -un)" "$@"
}
