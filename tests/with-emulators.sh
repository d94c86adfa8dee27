#!/usr/bin/env bash
# with-emulators.sh COMMAND [ARGUMENT...]
# Starts an S3, a GCS and an Azure emulator of its own (see emulators/emulators.sh), runs COMMAND with their
# addresses in FORKPOINT_TEST_..., stops them again and returns COMMAND's exit code. Exit 125: an emulator could
# not be started, and its log's last lines stand on stderr. Any number of calls may run at the same time.
#
# FORKPOINT_TEST_EMULATORS=required tells the tests that a missing address is a failure, not a reason to skip.
# A FORKPOINT_TEST_S3_ENDPOINT (_GCS_, _AZURE_) that is set already names a server to use instead.
# EMU_NAMES: which to start, default "s3 gcs azure".
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
emulators=$here/emulators/emulators.sh

EMU_STATE=$(mktemp -d "${TMPDIR:-/tmp}/forkpoint-emulators.XXXXXX")
export EMU_STATE
# `clean` ends what this state's pid files name and removes the state: nothing else is touched.
trap '"$emulators" clean || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# shellcheck disable=SC2086
lines=$("$emulators" start ${EMU_NAMES:-}) || exit 125
eval "$lines"
export FORKPOINT_TEST_EMULATORS=required
# A proxy of the machine must not come between the tests and loopback.
export NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy=$NO_PROXY
rc=0
"$@" || rc=$?
exit $rc
