#!/usr/bin/env python3
"""Four workers of a fork against one with as many copies at once: paired timings of `forkpoint run`.

    benches/peers/workers.py                                # examples/fault_server, each answer after 20 ms
    # SeaweedFS: server and workers share the processors. Volumes so large that none is made meanwhile.
    EMU_S3_VOLUME_MB=2048 tests/with-emulators.sh benches/peers/workers.py --s3

Both need `cargo build --release --bins --examples`. A pair is one fork of the same 2,000 objects by one worker and one by
four, in turns; timed from the start of the first worker to the end of the last. What is shown are the medians, and of the
ratios the median and the range.
"""

import argparse
import os
import random
import statistics
import struct
import subprocess
import tempfile
import time
import uuid

from peers import RELEASE, Endpoints, Server, own_environment


def lay(folder, url, objects, size):
    """A keyed backend of one operator whose incremental handle refers to so many shared files (metadata version 3),
    of random bytes: state files are mostly compressed already."""
    shared, checkpoint = os.path.join(folder, "shared"), os.path.join(folder, "chk-7")
    os.makedirs(shared)
    os.makedirs(checkpoint)
    i32, i64 = (lambda n: struct.pack(">i", n)), (lambda n: struct.pack(">q", n))
    text = lambda t: struct.pack(">H", len(t)) + t.encode()
    out = i32(0x4960672D) + i32(3) + i64(7) + i32(0) + i32(1) + bytes([7] * 16) + i32(1) + i32(128)
    out += b"\0" + i32(1) + i32(0) + i32(0) + i32(0)
    out += bytes([11]) + i64(7) + text(str(uuid.UUID(int=1))) + i32(0) + i32(128) + i64(-1)
    out += b"\1" + text("inline") + i32(2) + b"\1\2" + i32(objects)
    for n in range(objects):
        with open(os.path.join(shared, f"file-{n:06}"), "wb") as file:
            file.write(random.Random(n).randbytes(size))
        out += text(f"{n:06}.sst") + b"\2" + i64(size) + text(f"{url}/shared/file-{n:06}")
    out += i32(0) + text(str(uuid.UUID(int=2))) + b"\0" + i32(0) + i32(0)
    with open(os.path.join(checkpoint, "_metadata"), "wb") as file:
        file.write(out)


class Bench:
    def __init__(self, arguments, scratch, source, target):
        self.a, self.scratch, self.source, self.target = arguments, scratch, source, target

    def call(self, *arguments):
        subprocess.run([self.a.forkpoint, *arguments, "--quiet"], check=True, stdout=subprocess.DEVNULL)

    def lay(self):
        folder = os.path.join(self.scratch, "original")
        lay(folder, self.source, self.a.objects, self.a.size)
        self.call("duplicate", "--recursive", folder, self.source)

    def shared_by(self, workers):
        name = uuid.uuid4().hex
        plan = os.path.join(self.scratch, f"{name}.json")
        self.call("plan", f"{self.source}/chk-7", f"{self.target}/{name}", "--workers", str(workers), "--out", plan)
        each = str(self.a.concurrency // workers)
        begin = time.monotonic()
        running = [
            subprocess.Popen([self.a.forkpoint, "run", plan, "--worker", str(n), "--concurrency", each, "--quiet"],
                             stdout=subprocess.DEVNULL)
            for n in range(workers)
        ]
        codes = [process.wait() for process in running]
        took = time.monotonic() - begin
        if any(codes):
            raise SystemExit(f"workers ended with {codes}")
        self.call("commit", plan)
        return took

    def pairs(self, where):
        one, four = [], []
        for pair in range(self.a.pairs):
            for workers in [(1, 4), (4, 1)][pair % 2]:
                (one if workers == 1 else four).append(self.shared_by(workers))
            print(f"  one worker {one[-1]:.2f} s, four {four[-1]:.2f} s", flush=True)
        ratios = sorted(a / b for a, b in zip(one, four))
        print(f"{where}: one worker {statistics.median(one):.2f} s, four {statistics.median(four):.2f} s; four are "
              f"{statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forkpoint", default=str(RELEASE / "forkpoint"))
    parser.add_argument("--s3", action="store_true", help="on the S3 server of FORKPOINT_TEST_S3_ENDPOINT")
    parser.add_argument("--latency-ms", type=int, default=20)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--size", type=int, default=64 * 1024)
    parser.add_argument("--concurrency", type=int, default=16, help="copies at once, of all workers together")
    parser.add_argument("--pairs", type=int, default=7)
    a = parser.parse_args()
    what = f"{a.objects} objects of {a.size} bytes, {a.concurrency} at once"
    with tempfile.TemporaryDirectory(prefix="forkpoint-workers-") as scratch:
        if a.s3:
            of = lambda name: os.environ[f"FORKPOINT_TEST_S3_{name}"]
            let_in(Endpoints(s3=of("ENDPOINT"), s3_key=of("ACCESS_KEY"), s3_secret=of("SECRET_KEY")))
            one, two = os.environ["FORKPOINT_TEST_BUCKETS"].split()[:2]
            run = uuid.uuid4().hex
            bench = Bench(a, scratch, f"s3://{one}/workers-{run}", f"s3://{two}/workers-{run}")
            bench.lay()
            bench.pairs(what)
            return
        with Server("--latency-ms", str(a.latency_ms), "--bucket", "s3:one", "--bucket", "s3:two") as server:
            let_in(Endpoints.of(server))
            bench = Bench(a, scratch, "s3://one/original", "s3://two")
            bench.lay()
            bench.pairs(f"{what}, each answer after {a.latency_ms} ms")


def let_in(ends):
    os.environ.update(own_environment(ends, None), AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID=ends.s3_key,
                      AWS_SECRET_ACCESS_KEY=ends.s3_secret)


if __name__ == "__main__":
    main()
