#!/bin/sh
# Installs the package into an empty environment, with build isolation, as a user would, and shares
# a table between two processes.  $1: the Python to use.  $2: what to install; the sources here.
set -eu
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset PYO3_PYTHON VIRTUAL_ENV
"${1:-python3}" -m venv "$dir/venv"
echo "install: pip install ${2:-.} in an empty environment"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "${2:-.}"

cd "$dir"
export FARROW_MEMORY=64MiB FARROW_LINGER=0 XDG_RUNTIME_DIR="$dir" FARROW_MEMORY_DIR=/dev/shm
unset FARROW_SOCKET
"$dir/venv/bin/python" - <<'PYTHON'
import subprocess, sys
import farrow, pyarrow as pa

client = farrow.connect()
client.put(pa.table({"n": range(100_000)}), "numbers")
other = "import farrow; print(farrow.connect().get('numbers')['n'][-1])"
said = subprocess.run([sys.executable, "-c", other], check=True, capture_output=True, text=True)
assert said.stdout == "99999\n", said
# The installed pyarrow has a pool.
assert client.memory_pool().backend_name == "farrow"
PYTHON
"$dir/venv/bin/farrow" --version
echo "install: passed"
