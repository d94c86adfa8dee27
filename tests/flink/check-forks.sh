#!/usr/bin/env bash
# check-forks.sh [--originals] [--keep] [FIXTURE...]
# Lets real Flink judge forks of real checkpoints (tests/fixtures/checkpoints; without FIXTURE: all that apply).
#
#   independence  fork; delete the original, all of it; Flink's own reader finds no reference that leaves the fork;
#                 `forkpoint verify`; Flink restores the fork, finds the original's state and runs to the same end
#   claim         fork; Flink claims the fork, takes checkpoints until it has let the fork go, and deletes what it
#                 owned; no byte of the original has changed and Flink still restores it
#   workers       the same as independence, with forks that three workers share (plan, run side by side, commit); and with
#                 forks whose objects have their whole old keys, as bulk copiers of cloud services name them
#   refusal       a snapshot that Flink itself cannot restore is not forked, and nothing is committed
#
#   --originals   needs no forkpoint: checks the judge and the fixtures. Flink restores every fixture where it was
#                 made, and does not restore a mere copy of chk-N once the original has gone
#   --keep        keep the work folder (its path is printed), e.g. for Flink's output of a failed check
#
# Environment: FORKPOINT        the binary, default target/release/forkpoint
#              FLINK_VERSIONS   default "1.20.5 2.2.1"; fixtures of other versions are left out
# Needs: java and javac (11 or 17), python3 with venv and pip. The first run downloads Flink (0.5 GB).
# Fixtures are laid out at /tmp/ckpt-corpus/<fixture>, where they were made: what exists there already is not touched
# but ends the run. Exit: 0 all passed, 1 something failed, 2 wrong use.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
fixtures=$top/tests/fixtures/checkpoints
FORKPOINT=${FORKPOINT:-$top/target/release/forkpoint}
FLINK_VERSIONS=${FLINK_VERSIONS:-1.20.5 2.2.1}
CLAIMED=(1.20.5-rocks-inc-p2 1.20.5-filemerge-p2 1.20.5-chain-claim 1.20.5-changelog-rocks-p2
  2.2.1-rocks-inc-p2 2.2.1-filemerge-p2 2.2.1-forst-p2)
SHARED=(1.20.5-changelog-rocks-p2 1.20.5-filemerge-p2 1.20.5-savepoint-native 1.20.5-chain-claim 2.2.1-rocks-inc-p2 2.2.1-forst-p2)

usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
die() { echo "check-forks: $*" >&2; exit 2; }

originals='' keep='' only=()
while [ $# -gt 0 ]; do
  case $1 in
    --originals) originals=1 ;;
    --keep) keep=1 ;;
    -*) usage ;;
    *) [ -f "$fixtures/$1/meta.json" ] || die "no such fixture: $1"; only+=("$1") ;;
  esac
  shift
done
for tool in java javac python3 flock; do
  command -v "$tool" >/dev/null || die "$tool is not on the PATH"
done
if [ -z "$originals" ]; then
  [ -x "$FORKPOINT" ] || die "no forkpoint at $FORKPOINT: cargo build --release, or set FORKPOINT"
  FORKPOINT=$(realpath "$FORKPOINT")
fi

# The paths under /tmp/ckpt-corpus are fixed, so one run at a time.
exec 8>"${TMPDIR:-/tmp}/forkpoint-check-forks.lock"
flock -w 3600 8 || die "another run holds the lock"
work=$(mktemp -d "${TMPDIR:-/tmp}/forkpoint-check-forks.XXXXXX")
root= # the original that is laid out now
cleanup() {
  [ -z "$root" ] || rm -rf "$root"
  rmdir /tmp/ckpt-corpus 2>/dev/null
  if [ -n "$keep" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

declare -A home
for v in $FLINK_VERSIONS; do
  home[$v]=$("$here/install.sh" "$v" 8>&-) || die "Flink $v could not be installed"
done

passed=0 failed=0
started() { t0=$(date +%s%N); }
record() { # ok|FAILED|note FIXTURE CHECK DETAIL
  local s=$(((${EPOCHREALTIME/./} * 1000 - t0) / 100000000))
  case $1 in ok) passed=$((passed + 1)) ;; FAILED) failed=$((failed + 1)) ;; esac
  printf '%-6s  %-35s  %-28s  %4d.%d s  %s\n' "$1" "$2" "$3" $((s / 10)) $((s % 10)) "$4"
  started
}
verdict() { if [ "$1" = 0 ]; then echo ok; else echo FAILED; fi; }

meta() { # FIXTURE -> version, root URI, URI of the newest snapshot with a digest, URIs of broken snapshots
  python3 - "$fixtures/$1/meta.json" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
s = [s for s in m["snapshots"] if "digest" in s][-1]
print(m["flink"], m["root_uri"], s["uri"], *[b["uri"] for b in m["snapshots"] if "broken" in b])
PY
}

lay_out() {
  root=${root_uri#file://}
  case $root in /tmp/ckpt-corpus/?*) ;; *) root=; die "$fixture: made at an unexpected place: $root_uri" ;; esac
  if [ -e "$root" ]; then
    local there=$root
    root= # not ours: the trap must leave it alone
    die "$there exists: move it away first"
  fi
  "$here/judge/put.sh" "$fixtures/$fixture" >/dev/null || die "$fixture: could not be laid out"
}
take_away() { rm -rf "${root:?}"; root=; }

manifest() { # every file and folder below the original, with the digest of its content
  (cd "$root" && find . -type d | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

judge() { # LOG URI options... -> last verdict line
  local log=$1 uri=$2
  shift 2
  timeout -k 10 400 "$here/judge/judge.sh" -f "${home[$flink]}" -m "$fixtures/$fixture/meta.json" -c "$uri" "$@" >"$log" 2>&1 8>&-
  local rc=$?
  grep -E '^(PASS|FAIL|MISMATCH|TIMEOUT|Error|  caused by)' "$log" | tail -n 1 | sed -E 's/^ *caused by: //; s/java\.io\.//g; s/(FileNotFoundException: )+/\1/' | cut -c1-120
  return $rc
}

# by_workers DESTINATION OPTION...: a fork that three workers share; prints what `commit` answers.
by_workers() {
  local dest=$1 plan=$work/plan.json pids=() pid rc=0
  shift
  rm -f "$plan"
  "$FORKPOINT" plan "$uri" "file://$dest" --workers 3 --out "$plan" "$@" >/dev/null || return
  for i in 0 1 2; do
    JOB_COMPLETION_INDEX=$i "$FORKPOINT" run "$plan" >/dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  [ $rc = 0 ] || return $rc
  "$FORKPOINT" commit "$plan" --format json
}

# fork DESTINATION [OPTION...]: runs forkpoint, checks its answer; sets fork_uri (the new snapshot) and detail. With an
# OPTION of `plan` the work is shared by three workers.
fork() {
  local dest=$1 answer
  shift
  if [ $# = 0 ]; then
    answer=$("$FORKPOINT" fork "$uri" "file://$dest" --format json 2>"$work/fork.err" 8>&-)
  else
    answer=$(by_workers "$dest" "$@" 2>"$work/fork.err" 8>&-)
  fi
  local rc=$?
  if [ $rc != 0 ]; then
    detail="exit $rc: $(tail -n 1 "$work/fork.err")"
    return 1
  fi
  detail=$(python3 - "$dest" "$work/fork.uri" "$answer" <<'PY' 2>&1
import json, os, sys, urllib.parse
dest, out, a = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
assert a["version"] == 1, f"version {a['version']}"
assert a["independent"] is True, "not independent"
u = urllib.parse.urlsplit(a["snapshot"])
assert u.scheme in ("file", ""), a["snapshot"]
path = urllib.parse.unquote(u.path).rstrip("/")
assert os.path.dirname(path) == dest, f"{path} is not directly below {dest}"
assert os.path.isfile(path + "/_metadata"), f"no _metadata in {path}"
open(out, "w").write("file://" + path)
methods = ", ".join(f"{k} {v}" for k, v in a["methods"].items())
print(f"{a['objects']} objects, {a['bytes']} bytes ({methods})")
PY
) || { detail="not the answer of the contract: $(tail -n 1 <<<"$detail")"; return 1; }
  fork_uri=$(cat "$work/fork.uri")
}

# Every file and folder that Flink's own reader finds in the fork's _metadata: is it below DESTINATION, and there?
references() { # DESTINATION
  "$here/judge/dump.sh" "${home[$flink]}" "${fork_uri#file://}/_metadata" >"$work/dump.json" 2>"$work/dump.err" 8>&- ||
    { tail -n 1 "$work/dump.err"; return 1; }
  python3 - "$1" "$work/dump.json" 2>&1 <<'PY'
import json, os, sys, urllib.parse
dest, files, folders, outside, missing = sys.argv[1], set(), set(), [], []

def walk(o):
    if isinstance(o, list):
        for v in o:
            walk(v)
    elif isinstance(o, dict):
        kind = o.get("@", "")
        if kind.endswith("FileStateHandle") and not kind.startswith("Empty"):
            files.add(o["filePath"])
        elif kind == "DirectoryStreamStateHandle":
            folders.add(o["directory"])
        for v in o.values():
            walk(v)

walk(json.load(open(sys.argv[2])))
for r in sorted(files | folders):
    path = os.path.normpath(urllib.parse.urlsplit(r).path)
    if not path.startswith(dest + "/"):
        outside.append(r)
    elif r in files and not os.path.isfile(path):
        missing.append(r)
if outside or missing:
    sys.exit(f"{len(outside)} references leave the fork, {len(missing)} have no file; first: {(outside + missing)[0]}")
print(f"{len(files)} files and {len(folders)} folders, all below the fork")
PY
}

# independence WHAT [OPTION...]
independence() {
  local dest=$work/forks/$fixture out rc what=$1
  shift
  rm -rf "$dest"
  started
  lay_out
  fork "$dest" "$@"
  rc=$?
  record "$(verdict $rc)" "$fixture" "$what" "$detail"
  take_away
  [ $rc = 0 ] || return
  out=$(references "$dest"); rc=$?
  record "$(verdict $rc)" "$fixture" "references, by Flink" "$(tail -n 1 <<<"$out")"
  out=$("$FORKPOINT" verify "$fork_uri" 2>&1 8>&-); rc=$?
  record "$(verdict $rc)" "$fixture" "verify, original deleted" "exit $rc"
  out=$(judge "$work/$fixture.independence.log" "$fork_uri"); rc=$?
  record "$(verdict $rc)" "$fixture" "NO_CLAIM restore to the end" "$out"
}

claim() {
  local dest=$work/claimed/$fixture out rc left
  started
  lay_out
  fork "$dest"
  rc=$?
  if [ $rc = 0 ]; then
    manifest >"$work/before"
    # One checkpoint is kept, so that the claimed fork is let go; at its end the job deletes the last one too.
    out=$(judge "$work/$fixture.claim.log" "$fork_uri" -C CLAIM -n 2 -- --retain 1); rc=$?
    record "$(verdict $rc)" "$fixture" "CLAIM, 2 checkpoints, end" "$out"
    manifest >"$work/after"
    out=$(diff "$work/before" "$work/after"); rc=$?
    record "$(verdict $rc)" "$fixture" "original unchanged" \
      "$(wc -l <"$work/before") files and folders, $(grep -c '^[<>]' <<<"$out") differences"
    out=$(judge "$work/$fixture.original.log" "$uri"); rc=$?
    record "$(verdict $rc)" "$fixture" "original still restores" "$out"
    left=$(find "$dest" -type f 2>/dev/null | wc -l)
    record note "$fixture" "left under the fork" \
      "$left files$(find "$dest" -type f 2>/dev/null | head -n 3 | sed "s|$dest/|, |" | tr -d '\n')"
  else
    record FAILED "$fixture" "fork to be claimed" "$detail"
  fi
  take_away
}

refusal() { # URI of a broken snapshot
  local uri=$1 dest=$work/refused/$fixture rc
  started
  lay_out
  "$FORKPOINT" fork "$uri" "file://$dest" --format json >"$work/refused.out" 2>&1 8>&-
  rc=$?
  if [ $rc != 0 ] && [ -z "$(find "$dest" -name _metadata 2>/dev/null)" ]; then
    record ok "$fixture" "broken snapshot is refused" "exit $rc"
  else
    record FAILED "$fixture" "broken snapshot is refused" "exit $rc: $(tail -n 1 "$work/refused.out" | cut -c1-100)"
  fi
  take_away
}

original() {
  local out rc copy=$work/copies/$fixture
  started
  lay_out
  out=$(judge "$work/$fixture.log" "$uri"); rc=$?
  record "$(verdict $rc)" "$fixture" "Flink restores it" "$out"
  mkdir -p "$copy"
  cp -r "${uri#file:}" "$copy/"
  take_away
  # What shares nothing with its siblings may be copied by hand; everything else must fail, or the judge proves nothing.
  out=$(judge "$work/$fixture.copy.log" "file://$copy/$(basename "$uri")"); rc=$?
  case $fixture in
    *hashmap* | *savepoint*) record "$(verdict $rc)" "$fixture" "so does a copy of its folder" "$out" ;;
    *) record "$(verdict $((rc != 1)))" "$fixture" "a copy of chk-N does not" "$out" ;;
  esac
}

for meta_json in "$fixtures"/*/meta.json; do
  fixture=$(basename "$(dirname "$meta_json")")
  if [ ${#only[@]} -gt 0 ] && [[ " ${only[*]} " != *" $fixture "* ]]; then continue; fi
  read -r flink root_uri uri broken <<<"$(meta "$fixture")"
  started
  case $root_uri in
    file://*) ;;
    *) record note "$fixture" "left out" "made on an object store"; continue ;;
  esac
  if [ -z "${home[$flink]:-}" ]; then
    record note "$fixture" "left out" "Flink $flink is not in FLINK_VERSIONS"
    continue
  fi
  if [ -n "$originals" ]; then
    original
    continue
  fi
  independence "fork"
  if [[ " ${SHARED[*]} " == *" $fixture "* ]]; then
    independence "fork by 3 workers" --names engine
    independence "fork, whole old keys" --names whole-keys
  fi
  if [[ " ${CLAIMED[*]} " == *" $fixture "* ]]; then claim; fi
  for b in $broken; do refusal "$b"; done
  rm -rf "$work/forks" "$work/claimed" "$work/refused"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
