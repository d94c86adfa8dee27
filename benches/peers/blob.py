#!/usr/bin/env python3
"""The blob store measured: a warm cache against reading the file, a server against nginx, memory for a large blob.

    benches/peers/blob.py warm                # 64 MiB through a warm cache against reading and hashing the file
    benches/peers/blob.py nginx               # 64 MiB over loopback, forkpoint's server against nginx
    benches/peers/blob.py large --gib 10      # one blob through client, server and cache: memory above idle
    benches/peers/blob.py all

Build first: cargo build --release --bin forkpoint --example blob_speed. nginx must be installed (`apt-get install nginx-light`).
The two sides of a comparison take turns and rounds change the order; what is shown are the medians of the rounds and the median of
their ratios, above 1 where forkpoint is faster. `--lock FILE` takes that file's lock around each measurement, for machines that are
shared; `--folder` is where the blobs lie: its disk is measured too.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from peers import GIB, MIB, RELEASE
from speed import alone, say

FORKPOINT = str(RELEASE / "forkpoint")
SPEED = str(RELEASE / "examples" / "blob_speed")
NGINX = next((p for p in ("/usr/sbin/nginx", "/usr/local/sbin/nginx") if os.path.exists(p)), shutil.which("nginx"))


def run(*command):
    done = subprocess.run(list(command), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def memory(pid, what):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    return 0


class Server:
    """`forkpoint blob serve` on a free port."""

    def __init__(self, folder):
        command = [FORKPOINT, "blob", "serve", "--bind", "127.0.0.1:0", "--data", f"{folder}/data", "--ha", f"{folder}/ha",
                   "--max-bytes", "100GiB", "--on-exit", "delete"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if line.startswith("listening on "):
                self.url = line.split()[2]
                return
        raise RuntimeError("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()

    def put(self, file):
        document = run(FORKPOINT, "blob", "put", "bench", str(file), "--register", "--server", self.url, "--format", "json")
        return document["blobs"][0]["digest"]


def random_file(path, size):
    with open(path, "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


def compared(name, ours, theirs, size):
    """`ours` and `theirs`: seconds by round."""
    ratio = statistics.median(t / o for o, t in zip(ours, theirs))
    rate = lambda seconds: size / MIB / statistics.median(seconds)
    print(f"{name}: {rate(ours):.0f} MiB/s against {rate(theirs):.0f} MiB/s, ratio {ratio:.2f}")
    return ratio


def warm(options):
    size = options.mib * MIB
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Server(folder) as server:
        random_file(f"{folder}/blob", size)
        digest = server.put(f"{folder}/blob")
        with alone(options):
            ran = run(SPEED, "warm", server.url, "bench", digest, f"{folder}/cache", str(options.rounds))
        print(f"cold fetch of {options.mib} MiB: {options.mib / ran['cold']:.0f} MiB/s; a handle on the warm file: "
              f"{statistics.median(ran['handle']) * 1e6:.0f} us")
        return compared("warm cache, every byte compared, against read and hash", ran["cached"], ran["direct"], size)


@contextlib.contextmanager
def nginx(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = f"{folder}/nginx.conf"
    Path(conf).write_text(f"""
        daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{ worker_connections 64; }}
        http {{
            access_log off; sendfile on; tcp_nopush on;
            client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
            uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
            server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
        }}""")
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    process = subprocess.Popen([NGINX, "-c", conf, "-e", f"{folder}/error.log", *user], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()




def against_nginx(options):
    if not NGINX:
        raise RuntimeError("nginx is not installed")
    size = options.mib * MIB
    ratio = 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Server(folder) as server:
        os.mkdir(f"{folder}/www")
        random_file(f"{folder}/www/blob", size)
        digest = server.put(f"{folder}/www/blob")
        ours_url = f"{server.url}/v1/jobs/bench/blobs/{digest}"
        with nginx(folder) as peer:
            urls = [("ours", ours_url), ("theirs", f"{peer}/blob")]
            for url in urls:
                run(SPEED, "raw", url[1], "2")
            seconds = {"ours": [], "theirs": []}
            with alone(options):
                for n in range(options.rounds):
                    for who, url in urls if n % 2 == 0 else reversed(urls):
                        ran = run(SPEED, "raw", url, "1")
                        assert ran["bytes"] == size, ran
                        seconds[who] += ran["seconds"]
            ratio = compared(f"download of {options.mib} MiB over loopback against nginx", seconds["ours"], seconds["theirs"], size)
    return ratio


def large(options):
    size = options.gib * GIB
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Server(folder) as server:
        pid = server.process.pid
        # Holes between blocks that differ: a large blob that is made quickly.
        with open(f"{folder}/blob", "wb") as file:
            for at in range(0, size, 64 * MIB):
                file.seek(at)
                file.write(os.urandom(MIB))
            file.truncate(size)
        idle = memory(pid, "VmRSS:")
        began = time.monotonic()
        put = subprocess.Popen([FORKPOINT, "blob", "put", "bench", f"{folder}/blob", "--register", "--server", server.url,
                                "--format", "json"], stdout=subprocess.PIPE, text=True)
        document = json.loads(put.stdout.read())
        _, _, usage = os.wait4(put.pid, 0)
        put.stdout.close()
        put_seconds = time.monotonic() - began
        digest = document["blobs"][0]["digest"]
        after_put = memory(pid, "VmHWM:")
        os.unlink(f"{folder}/blob")
        ran = run(SPEED, "cold", server.url, "bench", digest, f"{folder}/cache")
        peak = memory(pid, "VmHWM:")
        assert ran["bytes"] == size, ran
        mib = lambda n: f"{n / MIB:.0f} MiB"
        print(f"{options.gib} GiB: put {put_seconds:.0f} s (client's peak {mib(usage.ru_maxrss * 1024)}), "
              f"fetch into the cache {ran['seconds']:.0f} s ({options.gib * 1024 / ran['seconds']:.0f} MiB/s)")
        print(f"server: idle {mib(idle)}, peak {mib(peak)} (after the put {mib(after_put)}), above idle {mib(peak - idle)}; "
              f"cache: idle {mib(ran['idle_kib'] * 1024)}, peak {mib(ran['peak_kib'] * 1024)}, "
              f"above idle {mib((ran['peak_kib'] - ran['idle_kib']) * 1024)}")
        return max(peak - idle, (ran["peak_kib"] - ran["idle_kib"]) * 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["warm", "nginx", "large", "all"])
    parser.add_argument("--mib", type=int, default=64, help="size of the blob that is timed")
    parser.add_argument("--gib", type=int, default=10, help="size of the large blob")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", default=None, help="where to work; four times the large blob must fit")
    parser.add_argument("--lock", metavar="FILE", help="a lock to hold while measuring")
    parser.add_argument("--lock-wait", type=float, default=3600, metavar="S", help="measure without it after so long, and say so")
    options = parser.parse_args()
    if options.what in ("warm", "all"):
        warm(options)
    if options.what in ("nginx", "all"):
        against_nginx(options)
    if options.what in ("large", "all"):
        large(options)


if __name__ == "__main__":
    main()
