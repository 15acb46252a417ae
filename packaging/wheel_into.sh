#!/usr/bin/env bash
# Builds the wheel into a folder, and installs it with farrow-sql into the active environment.
#
# usage: wheel_into.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?FOLDER}
beat=packaging/heartbeat.sh

rm -rf "$folder"
"$beat" "pip builds farrow" env -u PYO3_PYTHON pip wheel --quiet --no-deps --wheel-dir "$folder" .
"$beat" "pip installs farrow" pip install --quiet --no-deps --force-reinstall "$folder"/farrow-*.whl
"$beat" "pip builds farrow-sql" pip install --quiet --no-deps --force-reinstall ./sql
