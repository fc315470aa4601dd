#!/usr/bin/env bash
# All checks: `make check`, which is what CI runs on a clean clone. Each step is a make target that works alone too. What a machine cannot have (an
# interpreter without the GIL, a RabbitMQ server, the model checker) is skipped, with a line that says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
    TIMEFORMAT="==> make $*: %0R s, %0U + %0S s of processor"
    time "${MAKE:-make}" --no-print-directory "$@"
}

# The model checker computes for minutes and waits for nothing: at the lowest priority it has the time in which pip and
# the tests wait. It is a process group of its own, so that it ends with this script.
begin_model() {
    mkdir -p build
    set -m
    nice -n 19 tools/check.sh --model >build/model.log 2>&1 &
    model=$!
    set +m
    trap 'kill -- "-$model" 2>/dev/null || true' EXIT # it may have ended
}

end_model() {
    local status=0
    wait "$model" || status=$?
    trap - EXIT
    cat build/model.log
    return "$status"
}

if [[ ${1:-} == --model ]]; then
    run model
    exit
fi
run .venv/made/venv
begin_model
run .venv/made/dev
run test
run -j2 --output-sync=target lint typecheck docs
run test-freethreaded
# Each of these waits, or uses one core, for most of its time.
run -j3 --output-sync=target asan stress tsan test-rabbitmq
end_model
