#!/usr/bin/env bash
# run-all.sh [ARGUMENT of cargo test...]   every test, those against the object-store emulators included
#
# Needs cargo, python3 (with venv), node and npm. The first run installs the emulators (about a minute) under
# ${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-emulators.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
missing=
for tool in cargo python3 node npm flock setsid; do
  command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
  echo "run-all.sh: not found on the PATH:$missing" >&2
  echo "run-all.sh: cargo test alone runs what needs no emulator" >&2
  exit 1
fi
if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  echo "run-all.sh: this python3 cannot make a venv (on Debian: apt-get install python3-venv)" >&2
  exit 1
fi
cd "$root"
if [ $# -gt 0 ]; then
  exec tests/with-emulators.sh cargo test --workspace --locked "$@"
fi
exec tests/with-emulators.sh tests/side-by-side.sh
