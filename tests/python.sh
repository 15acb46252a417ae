#!/usr/bin/env bash
# Runs the Python tests with these arguments of pytest. What fails runs once more, one test after
# another: most tests wait for something, and on a busy machine it can be late. A crash of a process
# of pytest has no second run, nor have more failures than a busy machine explains.
set -uo pipefail
cd "$(dirname "$0")/.."
failures_max=5
output=$(mktemp)
trap 'rm -f "$output"' EXIT
python -m pytest "$@" | tee "$output"
code=${PIPESTATUS[0]}
# 1: tests failed.
if [ "$code" != 1 ] || grep -q "crashed while running" "$output" ||
    [ "$(grep -cE '^(FAILED|ERROR) ' "$output")" -gt "$failures_max" ]; then
    exit "$code"
fi
echo "What failed runs once more, alone."
python -m pytest --last-failed --last-failed-no-failures none
