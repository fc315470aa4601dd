#!/usr/bin/env bash
# All checks: `make check`, which is what CI runs on a clean clone. Each step is a make target that works alone too. What a machine cannot have (an
# interpreter without the GIL, a RabbitMQ server, the model checker) is skipped, with a line that says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
    TIMEFORMAT="==> make $*: %0R s, %0U + %0S s of processor"
    time "${MAKE:-make}" --no-print-directory "$@"
}

# begin NAME TARGET...: the model checker computes for minutes and waits for nothing. At the lowest priority it has the
# time in which pip and the tests wait. It is a process group of its own, so that it ends with this script.
declare -A beside=()
end_all() { for group in "${beside[@]}"; do kill -- "-$group" 2>/dev/null || true; done; }
trap end_all EXIT

begin() {
    local name=$1
    mkdir -p build
    set -m
    nice -n 19 tools/check.sh --beside "${@:2}" >"build/$name.log" 2>&1 &
    beside[$name]=$!
    set +m
}

end() {
    local status=0
    wait "${beside[$1]}" || status=$?
    unset "beside[$1]"
    cat "build/$1.log"
    return "$status"
}

if [[ ${1:-} == --beside ]]; then
    run "${@:2}"
    exit
fi
run .venv/made/venv
begin model model
run .venv/made/dev
run test
run -j2 --output-sync=target lint typecheck docs
run test-freethreaded
# Each of these waits, or uses one core, for most of its time.
run -j3 --output-sync=target asan stress tsan test-rabbitmq
end model
