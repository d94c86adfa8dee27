#!/usr/bin/env bash
# Restores a real Flink job from a checkpoint or savepoint and compares what it finds in its state.
#
#   judge.sh -f FLINK_HOME -c URI (-e DIGEST | -m META.json) [options] [-- more options of flinkjudge.Job]
#
#   -f  folder that holds Flink's lib/ (the "pyflink" folder of the package apache-flink-libraries)
#   -c  what to restore from: file:/... up to and including chk-N or savepoint-... (another scheme needs a
#       file-system plugin: see run.sh)
#   -e  expected digest of the state right after the restore
#   -E  expected digest of the state at the end of the job's input: every record counted exactly once,
#       in-flight data and source positions included (lets the job run to its end)
#   -m  take digests and job options from a fixture's meta.json (tests/fixtures/checkpoints)
#   -s  which snapshot of the meta.json (its "path"); default: the last one that has a digest
#   -C  NO_CLAIM (default), CLAIM or LEGACY
#   -p  parallelism, default that of the snapshot
#   -n  checkpoints to take after the restore, before the end (default 0)
#   -d  where they go (default a fresh temporary folder that is removed)
#   -q  print the verdict line only
#
# Exit: 0 restored and every given digest equal; 1 the restore or the job failed; 2 a digest differs;
#       3 wrong use or timeout. Last line of output: PASS or FAIL ...
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home='' uri='' exp='' fin='' meta='' snap='' claim=NO_CLAIM par='' after=0 dir='' quiet=''
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 3; }
while [ $# -gt 0 ]; do
  case $1 in
    -f) home=$2; shift 2;; -c) uri=$2; shift 2;; -e) exp=$2; shift 2;; -E) fin=$2; shift 2;;
    -m) meta=$2; shift 2;; -s) snap=$2; shift 2;; -C) claim=$2; shift 2;; -p) par=$2; shift 2;;
    -n) after=$2; shift 2;; -d) dir=$2; shift 2;; -q) quiet=1; shift;; --) shift; break;; *) usage;;
  esac
done
args=()
if [ -n "$meta" ]; then
  mapfile -t m < <(python3 - "$meta" "$snap" <<'P'
import json, sys

m = json.load(open(sys.argv[1]))
c = [s for s in m["snapshots"] if "digest" in s and (not sys.argv[2] or s["path"] == sys.argv[2])]
if not c:
    sys.exit("no such snapshot with a digest in " + sys.argv[1])
s = c[-1]
print(s["digest"], s["final_digest"], s["uri"], *s["judge_args"], sep="\n")
P
)
  [ ${#m[@]} -ge 3 ] || exit 3
  : "${exp:=${m[0]}}" "${fin:=${m[1]}}" "${uri:=${m[2]}}"
  args+=("${m[@]:3}")
fi
[ -n "$home" ] && [ -n "$uri" ] && [ -n "$exp" ] || usage
tmpdir=
if [ -z "$dir" ]; then tmpdir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-judge.XXXXXX"); dir=file://$tmpdir; fi
[ -z "$par" ] || args+=(--parallelism "$par")
args+=(--mode judge --from "$uri" --claim "$claim" --expect "$exp" --dir "$dir")
[ -z "$fin" ] || args+=(--expect-final "$fin" --final true)
[ "$after" = 0 ] || args+=(--after-checkpoints "$after" --final-checkpoint true)
out=$("$here/run.sh" "$home" "${args[@]}" "$@" 2>&1); rc=$?
[ -z "$tmpdir" ] || rm -rf "$tmpdir"
if [ -n "$quiet" ]; then
  printf '%s\n' "$out" | grep -E '^(PASS|FAIL|MISMATCH|TIMEOUT|Error|  caused by)' | tail -n 3
else
  printf '%s\n' "$out"
fi
# A PASS line is required: an exit code alone is not trusted.
if [ $rc -eq 0 ] && ! printf '%s\n' "$out" | grep -q '^PASS$'; then rc=3; fi
exit $rc
