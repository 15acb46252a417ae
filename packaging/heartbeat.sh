#!/usr/bin/env bash
# Becomes a command that prints nothing for minutes, and prints a line with its age on standard error
# every ten seconds ($HEARTBEAT_SECONDS).
#
# usage: heartbeat.sh LABEL COMMAND [ARGUMENT...]
set -euo pipefail
label=${1:?a label} seconds=${HEARTBEAT_SECONDS:-10}
shift

# Whether the command runs: it may have ended, and its parent has not looked yet.
is_running() {
    [ -e "/proc/$$" ] && ! grep -q '^State:.Z' "/proc/$$/status" 2>/dev/null
}

beat() {
    local status
    while true; do
        status=0
        # A timeout is above 128. The end of the pipe is below: the command and all that it started
        # have ended. What it leaves running holds the pipe, and is not waited for.
        read -rt "$seconds" || status=$?
        if [ "$status" -le 128 ] || ! is_running; then
            return 0
        fi
        echo "$label: $SECONDS s" >&2
    done
}

SECONDS=0
exec {alive}> >(beat)
# In its place: a signal to the process of this script is one to the command.
exec "$@"
