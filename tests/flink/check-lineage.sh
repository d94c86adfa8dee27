#!/usr/bin/env bash
# check-lineage.sh
# Asks `forkpoint why` whether a job's folder is still needed, removes the folder, and lets real Flink say who was right.
#
# For each chain of jobs in tests/fixtures/checkpoints (CLAIM, NO_CLAIM, LEGACY), and for a third generation that Flink
# makes here on top of each, in the same mode: for each older job, `why` on every snapshot and file of its folder; then
# the folder goes, all of it, and Flink restores the newest checkpoint of the youngest job, or fails to. Kept by the
# youngest job's checkpoint must mean that it fails, everything else that it restores with the same state as before.
#
# Environment: FORKPOINT  the binary, default target/release/forkpoint
# Needs: java and javac (11 or 17), python3 with venv and pip. The first run downloads Flink 1.20.5 (0.3 GB).
# Exit: 0 all agreed, 1 somebody was wrong, 2 wrong use.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
FORKPOINT=${FORKPOINT:-$top/target/release/forkpoint}
die() { echo "check-lineage: $*" >&2; exit 2; }
[ $# = 0 ] || { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
for tool in java javac python3 flock; do
  command -v "$tool" >/dev/null || die "$tool is not on the PATH"
done
[ -x "$FORKPOINT" ] || die "no forkpoint at $FORKPOINT: cargo build --release, or set FORKPOINT"
FORKPOINT=$(realpath "$FORKPOINT")

# The paths under /tmp/ckpt-corpus are fixed, so one run at a time, and none beside check-forks.sh.
exec 8>"${TMPDIR:-/tmp}/forkpoint-check-forks.lock"
flock -w 3600 8 || die "another run holds the lock"
work=$(mktemp -d "${TMPDIR:-/tmp}/forkpoint-check-lineage.XXXXXX")
root=
cleanup() {
  [ -z "$root" ] || rm -rf "$root"
  rmdir /tmp/ckpt-corpus 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
home=$("$here/install.sh" 1.20.5 8>&-) || die "Flink 1.20.5 could not be installed"

# Does `why` say that the checkpoint KEEPER needs anything of the folder JOB? Asks for each snapshot and each file.
needed() { # JOB KEEPER -> yes or no
  python3 - "$FORKPOINT" "$1" "$2" <<'PY'
import json, os, subprocess, sys
forkpoint, job, keeper = sys.argv[1:]
needed = False
for folder, _, files in os.walk(job):
    for what in [folder] if "_metadata" in files else [os.path.join(folder, f) for f in files]:
        run = subprocess.run([forkpoint, "why", what, "--format", "json"], capture_output=True, text=True)
        if run.returncode not in (0, 3):
            sys.exit(f"why {what} exited {run.returncode}: {run.stderr}")
        answer = json.loads(run.stdout)
        assert answer["answer"] == {0: "deletable", 3: "kept"}[run.returncode], answer["answer"]
        users = [r["snapshot"] for r in answer.get("reasons", [])] + answer.get("used_by", [])
        by_keeper = any(os.path.join(u["root"].removeprefix("file:"), u["job"], u["name"]) == keeper for u in users)
        assert not users or answer["answer"] == "kept", what
        needed |= by_keeper
print("yes" if needed else "no")
PY
}

judge() { # URI -> digest of what Flink found, or "fails"
  local out
  out=$(timeout -k 10 300 "$here/judge/judge.sh" -f "$home" -c "$1" -e unknown -- --records 4000 --timer-delay 300 --keys-a 200 \
    --payload 40 --inline "4 kb" -D state.backend.rocksdb.compaction.style=NONE 2>&1 8>&-)
  case $? in
    2) grep '^DIGEST ' <<<"$out" ;; # restored; no digest is "unknown"
    1) echo fails ;;
    *) echo "neither: $(tail -n 1 <<<"$out")" ;;
  esac
}

passed=0 failed=0
check() { # CHAIN OLDER YOUNGEST(checkpoint)
  local older=$root/$2 newest=$3 said before after verdict=ok
  cp -a "$root" "$work/copy"
  said=$(needed "$older" "$newest") || die "$1: why failed"
  before=$(judge "file:$newest")
  rm -rf "$older"
  after=$(judge "file:$newest")
  case $said in
    yes) [ "$after" = fails ] || verdict=WRONG ;;
    no) [ "$after" = "$before" ] || verdict=WRONG ;;
  esac
  case $before in DIGEST*) ;; *) verdict=WRONG ;; esac
  rm -rf "$root"
  mv "$work/copy" "$root"
  if [ $verdict = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  printf '%-6s %-22s without %s  needed: %-4s Flink: %s\n' "$verdict" "$1" "${2:0:8}" "$said" "$after"
}

for mode in claim noclaim legacy; do
  fixture=$top/tests/fixtures/checkpoints/1.20.5-chain-$mode
  claim=$(tr a-z A-Z <<<"${mode/noclaim/no_claim}")
  root=/tmp/ckpt-corpus/1.20.5-chain-$mode
  if [ -e "$root" ]; then root=; die "/tmp/ckpt-corpus/1.20.5-chain-$mode exists: move it away first"; fi
  "$here/judge/put.sh" "$fixture" >/dev/null || die "$fixture: could not be laid out"
  read -r a b newest <<<"$(python3 - "$fixture/meta.json" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
print(m["steps"][0]["job_id"], m["steps"][1]["job_id"], m["steps"][1]["checkpoints"][-1].removeprefix("file:"))
PY
)"
  check "$mode, 2 generations" "$a" "$newest"
  "$here/judge/run.sh" "$home" --mode produce --dir "file://$root" --from "file:$newest" --claim "$claim" --records 4000 --step 300 \
    --timer-delay 300 --keys-a 200 --payload 40 --inline "4 kb" --retain 2 --checkpoints 2 \
    -D state.backend.rocksdb.compaction.style=NONE >"$work/produce" 2>&1 8>&- || die "$mode: no third generation: $(tail -n 1 "$work/produce")"
  newest=$(sed -n 's/^CHECKPOINT file://p' "$work/produce" | tail -n 1)
  check "$mode, 3 generations" "$a" "$newest"
  check "$mode, 3 generations" "$b" "$newest"
  rm -rf "${root:?}"
  root=
done
echo "$passed agreed, $failed did not"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
