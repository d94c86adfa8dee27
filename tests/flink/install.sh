#!/usr/bin/env bash
# install.sh VERSION   installs the Flink libraries of that version, once, and prints FLINK_HOME (the folder with lib/)
#
# The libraries come from the Python package apache-flink-libraries, which holds a whole Flink distribution
# (runtime, RocksDB with its native library, in 2.x also ForSt) and nothing that has to run as a service.
# They go to $FORKPOINT_FLINK_HOME, by default ${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-flink: 260-340 MB a version.
# Only FLINK_HOME goes to stdout; progress goes to stderr. Two calls at once are safe.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
version=$1
case $version in *[!0-9.]* | '') echo "install.sh: not a Flink version: $version" >&2; exit 2 ;; esac
base=${FORKPOINT_FLINK_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-flink}
dir=$base/$version
mkdir -p "$base"
exec 9>"$base/.lock"
flock -w 1800 9 || { echo "install.sh: another call holds $base/.lock" >&2; exit 1; }
if [ ! -e "$dir/.installed" ]; then
  echo "install.sh: installing Flink $version into $dir" >&2
  rm -rf "$dir"
  python3 -m venv "$dir" >&2
  # --no-deps: only the jars are wanted, not what the Python API needs.
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir \
    --no-deps "apache-flink-libraries==$version" >&2
  touch "$dir/.installed"
fi
home=$(echo "$dir"/lib/python3*/site-packages/pyflink)
ls "$home"/lib/flink-dist*.jar >/dev/null || { echo "install.sh: no flink-dist jar in $home/lib" >&2; exit 1; }
echo "$home"
