#!/usr/bin/env python3
"""Paired timings: one snapshot by the snapshot writer, and the same files uploaded by rclone.

    cargo build --release --example write_snapshot
    benches/peers/writer.py --rclone peers-venv/bin/rclone        # 64 x 16 MiB to SeaweedFS

Both take turns inside a round, rounds change the order, every round has a fresh server. The writer also
computes SHA-256 of every file and commits a manifest. CPU and memory are those of the tool's process
alone (wait4). `--lock FILE` takes that file's lock around each round, for machines that are shared.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from peers import MIB, RELEASE, Endpoints, Tool, own_environment, rclone_environment
from speed import LOADS, Result, alone, emulators, lay_files, measured, must, rotated, say, spread


def seaweed_environment(ends, home):
    """With the provider AWS it refuses to send files without TLS."""
    return rclone_environment(ends, home) | {"RCLONE_CONFIG_S3_PROVIDER": "SeaweedFS"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writer", default=str(RELEASE / "examples" / "write_snapshot"))
    parser.add_argument("--rclone", default="rclone")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--mib", type=int, default=16, help="size of each file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=4, help="files at once, of both tools; rclone's default")
    parser.add_argument("--part-mib", type=int, default=16, help="part size of both tools")
    parser.add_argument("--work", help="folder for files")
    parser.add_argument("--lock", metavar="FILE", help="a lock to hold while measuring")
    parser.add_argument("--lock-wait", type=float, default=3600, metavar="S", help="measure without it after so long, and say so")
    parser.add_argument("--json", metavar="FILE", help="every single run")
    options = parser.parse_args()
    for path in (options.writer, options.rclone):
        if shutil.which(path) is None:
            raise SystemExit(f"{path} is not there")
    with tempfile.TemporaryDirectory(prefix="forkpoint-writer-", dir=options.work) as folder:
        home = os.path.join(folder, "home")
        os.mkdir(home)
        writer = Tool("writer", os.path.abspath(options.writer), (), ("s3",), own_environment, home)
        rclone = Tool("rclone", os.path.abspath(shutil.which(options.rclone)), (), ("s3",), seaweed_environment, home)
        version = rclone.run(["version"], Endpoints()).out.splitlines()[0]
        lay_files(folder, [("data", options.files, options.mib * MIB)])
        at_once, part = str(options.at_once), str(options.part_mib)
        # Each with the name of its round: it is new each time.
        commands = {
            "snapshot writer": (writer, lambda to: [f"{folder}/data", f"s3://emu-a/{to}", at_once, part]),
            "rclone": (rclone, lambda to: ["copy", f"{folder}/data", f"s3:emu-a/{to}", "--transfers", at_once,
                                           "--s3-chunk-size", f"{part}Mi", "--no-traverse"]),
        }
        runs = {label: [] for label in commands}
        for number in range(options.rounds + 1):
            with emulators("s3") as ends:
                with alone(options):
                    # Nobody shall be the one that makes the server's volumes.
                    must(rclone.run(commands["rclone"][1]("warm"), ends))
                    for label in rotated(list(commands), number):
                        tool, arguments = commands[label]
                        ran = must(tool.run(arguments(f"round-{number}-{tool.name}"), ends, 120))
                        if number:  # The first round warms caches.
                            runs[label].append(measured(ran, label))
                            say(f"round {number} {label}: {ran.seconds:.2f} s, CPU {ran.cpu:.2f}, {ran.rss_mib:.0f} MiB")
    size = options.files * options.mib
    result = Result(f"{options.files} x {options.mib} MiB to SeaweedFS, same cores; {version}",
                    ["", "s", "MiB/s", "time of this / the writer's", "client CPU s", "peak RSS MiB"])
    base = runs["snapshot writer"]
    for label, of in runs.items():
        seconds = [r["seconds"] for r in of]
        ratios = [a / b["seconds"] for a, b in zip(seconds, base)]
        result.rows.append([label, spread(seconds), f"{size / statistics.median(seconds):.0f}",
                            spread(ratios) if of is not base else "", f"{statistics.median(r['cpu'] for r in of):.2f}",
                            f"{max(r['rss_mib'] for r in of):.0f}"])
        result.runs += of
    bound = options.at_once * options.part_mib * 2
    result.notes.append(f"Files at once x part size x 2: {bound} MiB.")
    if LOADS:
        result.notes.append(f"{len(LOADS)} rounds shared the machine with others, load up to {max(LOADS):.1f}.")
    result.show()
    if options.json:
        Path(options.json).write_text(json.dumps(result.runs, indent=1))


if __name__ == "__main__":
    main()
