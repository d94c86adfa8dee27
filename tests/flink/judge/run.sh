#!/usr/bin/env bash
# run.sh FLINK_HOME [options of flinkjudge.Job]
# Compiles the sources once per Flink version, into $FLINK_JUDGE_CACHE (by default
# ${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-flink/judge), and runs them. Needs java and javac, 11 or 17.
# FLINK_HOME is the folder that holds lib/ (the "pyflink" folder of apache-flink-libraries will do).
# FLINK_JUDGE_PLUGINS: a Flink plugins folder, for checkpoints that lie on an object store.
# FLINK_JUDGE_HEAP: the heap, default 512m.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=$(cd "$1" && pwd); shift
dist=$(ls "$home"/lib/flink-dist*.jar)
ver=$(basename "$dist" .jar); ver=${ver#flink-dist-}
cache=${FLINK_JUDGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-flink/judge}
stamp=$(cat "$here"/src/flinkjudge/*.java | sha256sum | cut -c1-12)
work=$cache/$ver-$stamp
opens=()
for p in util lang net io nio time lang.reflect text util.concurrent; do
  opens+=(--add-opens "java.base/java.$p=ALL-UNNAMED")
done
opens+=(--add-opens java.base/sun.nio.ch=ALL-UNNAMED)
# (1.15 keeps a class that every task needs in a jar of its own, flink-shaded-zookeeper.)
more=$(find "$home"/lib -name 'log4j-*.jar' -o -name 'flink-shaded-*.jar' | sort | tr '\n' ':'); more=${more%:}
cp=$work/flinkjudge.jar:$dist:$more
jvm=(-Xmx"${FLINK_JUDGE_HEAP:-512m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "${opens[@]}"
  -Dlog4j.configurationFile="$here/log4j2.properties")
mkdir -p "$cache"
if [ ! -e "$work/.done" ]; then
  exec 9>"$cache/lock"; flock 9   # two callers at once build once
fi
if [ ! -e "$work/.done" ]; then
  tmp=$(mktemp -d)
  javac -nowarn -d "$tmp/cls" -cp "$dist" "$here"/src/flinkjudge/*.java
  (cd "$tmp/cls" && jar cf ../flinkjudge.jar .)
  mkdir -p "$work"; mv "$tmp/flinkjudge.jar" "$work/"; rm -rf "$tmp"
  # A class-data archive halves the start of the JVM; harmless when it cannot be made.
  java "${jvm[@]}" -XX:ArchiveClassesAtExit="$work/cds.jsa" -cp "$cp" flinkjudge.Job \
    --mode judge --records 50 --final true --cds true >/dev/null 2>&1 9>&- || true
  touch "$work/.done"
fi
exec 9>&-
if [ -e "$work/cds.jsa" ]; then jvm+=(-XX:SharedArchiveFile="$work/cds.jsa" -Xshare:auto); fi
[ -z "${FLINK_JUDGE_PLUGINS:-}" ] || export FLINK_PLUGINS_DIR=$FLINK_JUDGE_PLUGINS
exec java "${jvm[@]}" -cp "$cp" "${FLINK_JUDGE_MAIN:-flinkjudge.Job}" "$@"
