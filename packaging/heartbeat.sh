#!/usr/bin/env bash
# Runs a command that prints nothing for minutes, and a line with its age on standard error every ten
# seconds ($HEARTBEAT_SECONDS).
#
# usage: heartbeat.sh LABEL COMMAND [ARGUMENT...]
set -euo pipefail
label=${1:?a label} seconds=${HEARTBEAT_SECONDS:-10}
shift

beat() {
    local status
    while true; do
        status=0
        # A timeout is above 128. The end of the pipe is below: this script has ended, by whatever cause.
        read -rt "$seconds" || status=$?
        [ "$status" -gt 128 ] || return 0
        echo "$label: $SECONDS s" >&2
    done
}

SECONDS=0
exec {alive}> >(beat)
beater=$!
status=0
# What the command leaves running must not hold the pipe.
"$@" {alive}>&- || status=$?
exec {alive}>&-
wait "$beater" || true
exit "$status"
