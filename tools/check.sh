#!/usr/bin/env bash
# All checks: `make check`, which is what CI runs on a clean clone. Each step is a make target that works alone too. What a machine cannot have (an
# interpreter without the GIL, a RabbitMQ server, the model checker) is skipped, with a line that says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
    TIMEFORMAT="==> make $*: %0R s, %0U + %0S s of processor"
    time "${MAKE:-make}" --no-print-directory "$@"
}

# The model checker computes for minutes and waits for nothing, and so do the compilers for other platforms: at the
# lowest priority they have the time in which pip and the tests wait. Each is a process group of its own, so that it ends
# with this script.
declare -A begun
trap 'for target in "${!begun[@]}"; do kill -- "-${begun[$target]}" 2>/dev/null || true; done' EXIT # or it has ended

begin() {
    mkdir -p build
    set -m
    nice -n 19 tools/check.sh --only "$1" >"build/$1.log" 2>&1 &
    begun[$1]=$!
    set +m
}

end() {
    local status=0
    wait "${begun[$1]}" || status=$?
    unset "begun[$1]"
    cat "build/$1.log"
    return "$status"
}

if [[ ${1:-} == --only ]]; then
    run "$2"
    exit
fi
run .venv/made/venv
begin model
run .venv/made/dev
begin platforms-built
run test
end platforms-built # before what installs packages, too
run -j3 --output-sync=target platforms-tested lint typecheck docs test-debug
run test-freethreaded
# Each of these waits, or uses one core, for most of its time.
run -j3 --output-sync=target asan stress tsan test-rabbitmq
end model
