#!/usr/bin/env bash
# put.sh FIXTURE_FOLDER...  lays each fixture's files where they were made (/tmp/ckpt-corpus/<name>), so that the
# absolute paths inside its _metadata files hold. It replaces what is there and prints the path.
set -euo pipefail
for e in "$@"; do
  u=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["root_uri"])' "$e/meta.json")
  case $u in
    file:///tmp/ckpt-corpus/?*) ;;
    *) echo "put.sh: $e was not made on the local file system: $u" >&2; exit 3 ;;
  esac
  p=${u#file://}
  rm -rf "$p"
  mkdir -p "$(dirname "$p")"
  cp -r "$e/root" "$p"
  echo "$p"
done
