#!/usr/bin/env bash
# All checks, one after another: `make check`, which is what CI runs on a clean clone. Each step is a make target that works alone too. What a
# machine cannot have (an interpreter without the GIL, a RabbitMQ server, the model checker) is skipped, with a line that says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
    TIMEFORMAT="==> make $*: %0R s, %0U + %0S s of processor"
    time "${MAKE:-make}" --no-print-directory "$@"
}

run test
run -j2 --output-sync=target lint typecheck docs
run test-freethreaded
# Each of these waits, or uses one core, for most of its time.
run -j3 --output-sync=target asan stress model tsan test-rabbitmq
