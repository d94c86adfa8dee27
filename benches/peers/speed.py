#!/usr/bin/env python3
"""Paired timings: forkpoint and rclone, s5cmd, AWS CLI, cp.

    benches/peers/speed.py --peers peers-venv/bin small        # 100,000 x 1 KiB, fault server, 20 ms
    benches/peers/speed.py --peers peers-venv/bin seaweed      # bucket to bucket on SeaweedFS
    benches/peers/speed.py --peers peers-venv/bin relay        # SeaweedFS to fake-gcs-server and Azurite
    sudo benches/peers/speed.py local                          # XFS, btrfs and ext4 in loop mounts, against cp
    sudo benches/peers/speed.py stores                         # `forkpoint probe` on loop mounts and emulators
    benches/peers/speed.py memory                              # peak memory for 1,000,000 objects
    benches/peers/speed.py --peers peers-venv/bin all

Tools take turns inside a round and rounds change the order; what is shown are medians, and for
ratios the median of the ratios of the rounds. CPU and memory are those of the tool's process alone
(wait4). `--lock FILE` takes that file's lock around each measurement, for machines that are shared.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import (
    GIB, MIB, REPOSITORY, Endpoints, Running, Server, add_tool_options, drop_home, find_tools, table,
)


def say(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(options):
    if not options.lock:
        yield
        return
    with open(options.lock, "a") as file:
        # Once in vain, the next time is not worth as much.
        end = time.monotonic() + options.lock_wait * (0.05 if LOADS else 1)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    LOADS.append(os.getloadavg()[0])
                    say(f"measured without the lock, load {LOADS[-1]:.1f}")
                    break
                time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


# Of measurements that others disturbed.
LOADS = []


def must(ran):
    if ran.code != 0:
        raise RuntimeError("\n".join(ran.lines()))
    return ran


def rotated(things, n):
    n %= len(things)
    return things[n:] + things[:n]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def measured(ran, label, **more):
    return {"label": label, "seconds": ran.seconds, "cpu": ran.cpu, "rss_mib": ran.rss_mib,
            "command": " ".join(ran.command), **more}


def shown(command):
    """Without the paths of this machine, and of this run."""
    words = [re.sub(r"^.*/mount/", "MOUNT/", w) for w in command.split()]
    return " ".join([os.path.basename(words[0]), *words[1:]])


class Result:
    """What one measurement hands back: a table, notes, and all single runs."""

    def __init__(self, title, head):
        self.title, self.head, self.rows, self.runs, self.notes = title, head, [], [], []

    def show(self):
        print(f"\n### {self.title}\n")
        print(table(self.head, self.rows))
        first = {}
        for run in self.runs:
            first.setdefault(run["label"], run["command"])
        for command in dict.fromkeys(shown(c) for c in first.values()):
            print(f"\n    {command}", end="")
        print()
        for note in self.notes:
            print(f"\n{note}")
        sys.stdout.flush()


# ---------------------------------------------------------------- bucket to bucket
def many(name, source, destination, overwrite=True, tuned=True):
    """A tree from bucket to bucket, `source` and `destination` as bucket/prefix."""
    if name == "forkpoint":
        flags = ["--overwrite", "--verify", "none"] if overwrite else []
        return ["duplicate", "-r", f"s3://{source}", f"s3://{destination}", "--quiet", *flags]
    if name == "rclone":
        flags = ["--transfers", "128", "--checkers", "128", "--fast-list", "--no-check-dest",
                 # One HEAD a file instead of two; it then keeps no times.
                 "--use-server-modtime", "--s3-no-head", "--s3-no-head-object"] if tuned else []
        return ["copy", f"s3:{source}", f"s3:{destination}", *flags]
    if name == "s5cmd":
        return ["--log", "error", "cp", f"s3://{source}/*", f"s3://{destination}/"]
    return ["s3", "cp", "--recursive", "--only-show-errors", f"s3://{source}/", f"s3://{destination}/"]


def small(options, tools):
    count = options.files or 100_000
    result = Result(
        f"{count:,} objects of 1 KiB, bucket to bucket, fault server with 20 ms latency on the same cores",
        ["", "files", "files/s", "client CPU ms/file", "files per CPU s", "peak RSS MiB", "requests per 1,000 files"],
    )
    variants = [(t, t.name, True) for t in tools]
    variants += [(t, "forkpoint, create-only and sizes verified", False) for t in tools if t.name == "forkpoint"]
    for tool, label, plain in variants:
        files = {"forkpoint": count, "aws": min(count, options.peer_files // 4)}.get(tool.name, min(count, options.peer_files))
        runs = []
        for _ in range(options.rounds if files <= 20_000 or tool.name == "forkpoint" else 1):
            with Server("--latency-ms", "20", "--fill", f"s3:one:data/:{files}:1024") as server:
                with alone(options):
                    ran = tool.run(many(tool.name, "one/data", "two/data", plain), Endpoints.of(server), 240)
                must(ran)
                counters = server.counters()
                there = counters.get("s3.copy", 0) - counters.get("s3.copy.failed", 0)
                if there < files:
                    raise RuntimeError(f"{label}: {counters}")
                runs.append(measured(ran, label, files=files, counters=counters))
                say(f"small {label}: {files / ran.seconds:.0f} files/s, {files / ran.cpu:.0f} per CPU s, {counters}")
        result.runs += runs
        middle = lambda key: statistics.median(r[key] for r in runs)
        asked = ", ".join(f"{k.removeprefix('s3.')} {v * 1000 / files:.4g}" for k, v in runs[0]["counters"].items())
        result.rows.append([label, f"{files:,}", f"{files / middle('seconds'):,.0f}", f"{middle('cpu') * 1000 / files:.3f}",
                            f"{files / middle('cpu'):,.0f}", f"{middle('rss_mib'):.0f}", asked])
    return result


@contextlib.contextmanager
def emulators(*names):
    """Fresh emulators; yields their settings."""
    state = tempfile.mkdtemp(prefix="forkpoint-peers-emu-")
    script = str(REPOSITORY / "tests" / "emulators" / "emulators.sh")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORKPOINT_TEST_")} | {"EMU_STATE": state}
    run = lambda *a: subprocess.run([script, *a], env=environment, check=True, capture_output=True, text=True).stdout
    try:
        lines = run("start", *names).splitlines()
        settings = dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)
        settings = {k: v.strip("'") for k, v in settings.items()}
        get = lambda name: settings.get(f"FORKPOINT_TEST_{name}", "")
        yield Endpoints(
            s3=get("S3_ENDPOINT"), s3_key=get("S3_ACCESS_KEY"), s3_secret=get("S3_SECRET_KEY"), gcs=get("GCS_ENDPOINT"),
            azure=get("AZURE_ENDPOINT"), azure_account=get("AZURE_ACCOUNT"), azure_key=get("AZURE_KEY"),
        )
    finally:
        with contextlib.suppress(Exception):
            run("clean")
        shutil.rmtree(state, ignore_errors=True)


def lay_files(folder, sets):
    """Files of random bytes: `[(prefix, count, size)]`."""
    block = os.urandom(MIB)
    for prefix, count, size in sets:
        os.makedirs(f"{folder}/{prefix}", exist_ok=True)
        for n in range(count):
            with open(f"{folder}/{prefix}/{n:06}", "wb") as file:
                left = size
                while left:
                    piece = (n.to_bytes(8, "little") + left.to_bytes(8, "little") + block[16:])[: min(left, MIB)]
                    file.write(piece)
                    left -= len(piece)


def seaweed(options, tools):
    result = Result("Bucket to bucket on SeaweedFS 4.48, same cores",
                    ["", "", "s", "time of this / forkpoint's", "client CPU s", "peak RSS MiB"])
    own = next(t for t in tools if t.name == "forkpoint")
    for title, count, size, without in (("2,000 x 64 KiB", 2000, 64 * 1024, ()), ("20 x 64 MiB", 20, 64 * MIB, ("aws",))):
        taking_part = [t for t in tools if t.name not in without]
        runs = {t.name: [] for t in taking_part}
        with tempfile.TemporaryDirectory(prefix="forkpoint-peers-", dir=options.work) as folder:
            lay_files(folder, [("data", count, size)])
            for number in range(options.rounds):
                # Fresh each round: deleted objects keep their place there for long.
                with emulators("s3") as ends:
                    must(own.run(["duplicate", "-r", f"{folder}/data", "s3://emu-a/data", "--quiet"], ends))
                    # Nobody shall be the one that makes the volumes of the second bucket.
                    must(own.run(["duplicate", "s3://emu-a/data/000000", "s3://emu-b/first", "--quiet"], ends))
                    with alone(options):
                        for tool in rotated(taking_part, number):
                            # What the tool before has made the server write is no longer on its way to the disk.
                            os.sync()
                            ran = must(tool.run(many(tool.name, "emu-a/data", f"emu-b/{tool.name}"), ends, 120))
                            runs[tool.name].append(measured(ran, f"{title} {tool.name}"))
                            say(f"seaweed {title} round {number + 1} {tool.name}: {ran.seconds:.2f} s, CPU {ran.cpu:.2f}")
        add_rows(result, title, runs)
    return result


def add_rows(result, title, runs):
    base = runs["forkpoint"]
    for name, of in runs.items():
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(of, base)]
        result.rows.append([title, name, spread([r["seconds"] for r in of]), spread(ratios) if name != "forkpoint" else "",
                            f"{statistics.median(r['cpu'] for r in of):.2f}", f"{statistics.median(r['rss_mib'] for r in of):.0f}"])
        result.runs += of


def relay(options, tools):
    result = Result("Relay through the client: SeaweedFS S3 to another service, same cores",
                    ["", "", "s", "time of this / forkpoint's", "client CPU s", "peak RSS MiB"])
    tools = {t.name: t for t in tools}
    if "rclone" not in tools:
        result.notes.append("rclone is not there: nothing to compare with")
        return result
    sets = [("data", 8, 64 * MIB), ("data/small", 400, 64 * 1024)]
    with tempfile.TemporaryDirectory(prefix="forkpoint-peers-", dir=options.work) as folder:
        lay_files(folder, sets)
        for service, emulator, place, remote in (("gcs", "gcs", "gs://emu-b", "gcs:emu-b"), ("azure", "azure", "az://emu-b", "azure:emu-b")):
            title = f"8 x 64 MiB + 400 x 64 KiB to {'fake-gcs-server' if service == 'gcs' else 'Azurite'}"
            runs = {"forkpoint": [], "rclone, defaults": [], "rclone --transfers 16": []}
            for number in range(options.rounds):
                with emulators("s3", emulator) as ends:
                    must(tools["forkpoint"].run(["duplicate", "-r", f"{folder}/data", "s3://emu-a/data", "--quiet"], ends))
                    # Each once before: all read from a warm cache.
                    must(tools["forkpoint"].run(["duplicate", "-r", "s3://emu-a/data", f"{folder}/warm{number}", "--quiet", "--no-sync"], ends))
                    shutil.rmtree(f"{folder}/warm{number}")
                    with alone(options):
                        for label in rotated(list(runs), number):
                            to = label.split()[0].strip(",") + str(len(label))
                            if label == "forkpoint":
                                command = ["duplicate", "-r", "s3://emu-a/data", f"{place}/{to}", "--quiet", "--overwrite", "--verify", "none"]
                            else:
                                more = [] if "defaults" in label else ["--transfers", "16", "--checkers", "16"]
                                command = ["copy", "s3:emu-a/data", f"{remote}/{to}", *more]
                            os.sync()
                            ran = must(tools[label.split(",")[0].split()[0]].run(command, ends, 120))
                            runs[label].append(measured(ran, f"{title} {label}"))
                            say(f"relay {service} round {number + 1} {label}: {ran.seconds:.2f} s, CPU {ran.cpu:.2f}, {ran.rss_mib:.0f} MiB")
            add_rows(result, title, runs)
    result.notes.append("Between two S3 servers: not offered by forkpoint, which has one S3 endpoint a run.")
    return result


# ---------------------------------------------------------------- local disk
@contextlib.contextmanager
def mounted(kind, size, work):
    folder = tempfile.mkdtemp(prefix=f"forkpoint-peers-{kind}-", dir=work)
    image, mount = f"{folder}/image", f"{folder}/mount"
    run = lambda *a: subprocess.run(a, check=True, capture_output=True)
    try:
        os.mkdir(mount)
        with open(image, "wb") as file:
            file.truncate(size)
        run(f"mkfs.{kind}", *{"ext4": ("-q", "-F"), "xfs": ("-q",), "btrfs": ("-q",)}[kind], image)
        run("mount", "-o", "loop", image, mount)
        try:
            yield mount
        finally:
            run("umount", mount)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def local(options, tools):
    result = Result("Local disk, loop mounts of files on the working disk",
                    ["", "", "ms", "time of cp / this", "client CPU ms", "peak RSS MiB"])
    own = next(t for t in tools if t.name == "forkpoint")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    cases = [("xfs", "256 MiB", True), ("btrfs", "256 MiB", True), ("ext4", "256 MiB", False), ("xfs", "200 x 256 MiB", True), ("btrfs", "200 x 256 MiB", True),
             ("ext4", "5,000 x 4 KiB", False), ("xfs", "5,000 x 4 KiB", False)]
    for kind, what, reflink in cases:
        many_files = what != "256 MiB"
        with mounted(kind, 8 * GIB, options.work) as at:
            lay_files(at, [("many", 5000, 4096)] if "4 KiB" in what else [("one", 1, 256 * MIB)])
            if "200" in what:  # They share their blocks: the file system has room for one.
                os.mkdir(f"{at}/many")
                for n in range(200):
                    subprocess.run(["cp", "--reflink=always", f"{at}/one/000000", f"{at}/many/{n:06d}"], check=True)
            os.sync()
            source = f"{at}/many" if many_files else f"{at}/one/000000"
            tree = ["-r"] if many_files else []
            # As cp does it, which verifies nothing and never syncs; and as it is by default.
            plain = [own.path, "duplicate", *tree, "--quiet", "--no-sync", "--verify", "none", source]
            variants = {
                "forkpoint --no-sync --verify none": plain,
                "forkpoint": [own.path, "duplicate", *tree, "--quiet", source],
                "cp": ["cp", *tree, *(["--reflink=always"] if reflink else []), source],
            }
            runs = {name: [] for name in variants}
            with alone(options):
                for number in range(options.rounds + 1):
                    for name in rotated(list(variants), number):
                        to = f"{at}/to-{number}-{len(name)}"
                        os.sync()
                        ran = must(Running([*variants[name], to], environment if name == "cp" else own.environment(Endpoints())).wait(120))
                        if number:  # The first round warms caches.
                            runs[name].append(measured(ran, f"{kind} {what} {name}"))
                        if not many_files:  # ext4 is slow to give out what was just deleted.
                            os.remove(to)
            base = runs["forkpoint --no-sync --verify none"]
            for name, of in runs.items():
                label = " ".join(["cp", *tree, *(["--reflink=always"] if reflink else [])]) if name == "cp" else name
                ratios = [a["seconds"] / b["seconds"] for a, b in zip(runs["cp"], of)]
                result.rows.append([f"{kind}, {what}", label, spread([r["seconds"] * 1000 for r in of]),
                                    spread(ratios) if name != "cp" else "", f"{statistics.median(r['cpu'] for r in of) * 1000:.1f}",
                                    f"{statistics.median(r['rss_mib'] for r in of):.0f}"])
                say("local " + " / ".join(result.rows[-1]))
                result.runs += of
    return result


def memory(options, tools):
    count = options.files or 1_000_000
    result = Result(f"Memory: {count:,} objects of 1 KiB, bucket to bucket, fault server without latency",
                    ["", "peak RSS MiB", "files/s", "files per CPU s"])
    own = next(t for t in tools if t.name == "forkpoint")
    with Server("--fill", f"s3:one:data/:{count}:1024") as server:
        with alone(options):
            ran = must(own.run(many("forkpoint", "one/data", "two/data"), Endpoints.of(server), 600))
        result.runs.append(measured(ran, "forkpoint", files=count, counters=server.counters()))
        result.rows.append(["forkpoint", f"{ran.rss_mib:.0f}", f"{count / ran.seconds:,.0f}", f"{count / ran.cpu:,.0f}"])
        say(f"memory: {result.rows[-1]} {server.counters()}")
    return result


def stores(options, tools):
    result = Result("Which stores duplicate fast: `forkpoint probe`, emulators and loop mounts on this machine",
                    ["store", "method", "4 KiB, ms", "64 MiB, ms", "1 GiB, ms", "1 GiB, MiB/s"])
    own = next(t for t in tools if t.name == "forkpoint")

    def probe(name, url, ends, sizes):
        with alone(options):
            ran = must(own.run(["probe", url, "--sizes", ",".join(str(s // 1024) for s in sizes), "--rounds", "3", "--format", "json", "--quiet"], ends, 590))
        found = {s["bytes"]: s for s in json.loads(ran.out)["sizes"]}
        cell = lambda size: f"{found[size]['median_ms']:,.1f}" if size in found else "—"
        largest = found.get(GIB)
        methods = dict.fromkeys(f["method"] for f in found.values())
        result.rows.append([name, ", ".join(methods), cell(4096), cell(64 * MIB), cell(GIB),
                            f"{1024 / (largest['median_ms'] / 1000):,.0f}" if largest else "—"])
        say("stores " + " / ".join(result.rows[-1]))

    sizes = [4096, 64 * MIB, GIB]
    for kind in ("xfs", "btrfs", "ext4"):
        with mounted(kind, 8 * GIB, options.work) as at:
            probe(f"{kind} (files)", at, Endpoints(), sizes)
    for name, emulator, url in (("SeaweedFS (S3)", "s3", "s3://emu-a/probe"), ("fake-gcs-server", "gcs", "gs://emu-a/probe"), ("Azurite", "azure", "az://emu-a/probe")):
        with emulators(emulator) as ends:
            probe(name, url, ends, sizes)
    return result


PARTS = {"stores": stores, "small": small, "seaweed": seaweed, "relay": relay, "local": local, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="+", choices=[*PARTS, "all"])
    add_tool_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, help="objects in `small` and `memory`")
    parser.add_argument("--peer-files", type=int, default=20_000, help="objects that the peers are given in `small`; AWS CLI a quarter")
    parser.add_argument("--tool", action="append", help="only this one besides forkpoint (may be repeated)")
    parser.add_argument("--work", help="folder for files and mounts")
    parser.add_argument("--lock", metavar="FILE", help="a lock to hold while measuring")
    parser.add_argument("--lock-wait", type=float, default=3600, metavar="S", help="measure without it after so long, and say so")
    parser.add_argument("--json", metavar="FILE", help="every single run")
    options = parser.parse_args()
    names = ["forkpoint", "rclone", "s5cmd", "aws"]
    tools, notes = find_tools(options, [n for n in names if not options.tool or n in options.tool or n == "forkpoint"])
    parts = list(PARTS) if "all" in options.part else options.part
    print("Versions: " + ", ".join(f"{t.name} {t.version}" for t in tools))
    for note in notes:
        print(f"note: {note}")
    results = []
    try:
        for part in parts:
            LOADS.clear()
            result = PARTS[part](options, tools)
            if LOADS:
                result.notes.append(f"{len(LOADS)} measurements shared the machine with others, load up to {max(LOADS):.1f}.")
            result.show()
            results.append({"part": part, "title": result.title, "head": result.head, "rows": result.rows, "notes": result.notes, "runs": result.runs})
    finally:
        drop_home(tools)
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
