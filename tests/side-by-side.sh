#!/usr/bin/env bash
# side-by-side.sh   builds all tests and runs their programs, as many at a time as there are processors
#
# `cargo test` runs one program after the other, and many of these wait more than they compute: for servers, for
# lapsed times, for processes that they have killed. What each one printed comes whole, when it has ended.
# Exit 101, with the names of those that failed, if any did.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
scratch=$(mktemp -d "${TMPDIR:-/tmp}/forkpoint-tests.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

cargo test --workspace --locked --no-run --message-format=json-render-diagnostics >"$scratch/messages"
# A line per program: where it is, where it runs, what it is called. Those that take longest begin.
python3 - "$scratch/messages" >"$scratch/programs" <<'PYTHON'
import json, os, sys

LONGEST = ["blob_server", "duplicate_faults", "writer_kill", "fork_kill", "fork_workers"]
programs = []
for line in open(sys.argv[1], encoding="utf-8"):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    if message["profile"]["test"]:
        name, folder = message["target"]["name"], os.path.dirname(message["manifest_path"])
        programs.append((LONGEST.index(name) if name in LONGEST else len(LONGEST), name, message["executable"], folder))
for _, name, program, folder in sorted(programs):
    print(f"{name}\t{program}\t{folder}")
PYTHON
[ -s "$scratch/programs" ] || { echo "side-by-side.sh: there is no test" >&2; exit 101; }

one() {
  local name program folder out rc=0 begin=$SECONDS
  IFS=$'\t' read -r name program folder <<<"$1"
  # The library and the command have one name: what cargo calls their programs differs.
  out=$scratch/$(basename "$program").out
  (cd "$folder" && CARGO_MANIFEST_DIR=$folder "$program") >"$out" 2>&1 </dev/null || rc=$?
  [ $rc = 0 ] || echo "$name" >>"$scratch/failed"
  # One write per program, so that two that end together do not mix.
  flock "$scratch/programs" bash -c 'printf "     Running %s (%s s)\n" "$1" "$2"; cat "$3"' - "$name" $((SECONDS - begin)) "$out"
}
export -f one
export scratch
tr '\n' '\0' <"$scratch/programs" | xargs -0 -n 1 -P "$(nproc)" bash -c 'one "$1"' -
if [ -s "$scratch/failed" ]; then
  echo "failed: $(sort "$scratch/failed" | tr '\n' ' ')" >&2
  exit 101
fi
cargo test --workspace --locked --doc
