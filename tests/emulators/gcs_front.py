#!/usr/bin/env python3
"""Gives fake-gcs-server the part of the XML API that object_store speaks.

object_store's GCS client writes with the XML API (PUT /bucket/key, x-goog-copy-source, XML multipart
uploads, x-goog-if-generation-match). fake-gcs-server answers these with 400 "invalid uploadType".
This front translates them to the JSON API of the backend and passes all else through unchanged.

    gcs_front.py LISTEN_PORT BACKEND_URL [-- COMMAND...]   (COMMAND: the backend; it ends with the front)

It listens on GCS_FRONT_HOST, by default 127.0.0.1.

What is real here and what is not: list, get, head, delete, rewriteTo and the JSON API are the backend's own.
XML put, copy, preconditions on them and XML multipart are this file's reading of Google's documents,
so a test that passes on them proves the client's requests and error handling, not Google's behaviour.
Also added, since the backend ignores them: start-after on XML lists, ifGenerationMatch on rewriteTo, and, for tests of the
token loop, rewriteTo that needs several calls (env GCS_FRONT_REWRITE_CHUNK=bytes, or the request's
maxBytesRewrittenPerCall). Standard library only.
"""
import base64, ctypes, hashlib, http.client, json, os, re, signal, subprocess, sys, threading, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

PORT, BACKEND = int(sys.argv[1]), urlsplit(sys.argv[2])
HOST = os.environ.get("GCS_FRONT_HOST", "127.0.0.1")
CHUNK = int(os.environ.get("GCS_FRONT_REWRITE_CHUNK", "0"))
RESERVED = ("storage", "upload", "download", "batch", "_internal")  # first path segments of the JSON API
HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "accept-encoding"}
WRITE = threading.Lock()  # makes "check generation, then write" one step
UPLOADS, REWRITES, LOCAL = {}, {}, threading.local()
FIELDS = {"content-type": "contentType", "cache-control": "cacheControl", "content-encoding": "contentEncoding",
          "content-language": "contentLanguage", "content-disposition": "contentDisposition",
          "x-goog-storage-class": "storageClass"}


def backend(method, path, body=None, headers=None):
    for attempt in (0, 1):  # an idle kept connection may have been closed: once more on a new one
        conn = getattr(LOCAL, "conn", None) or http.client.HTTPConnection(BACKEND.hostname, BACKEND.port, timeout=300)
        LOCAL.conn = conn
        try:
            conn.request(method, path, body=body, headers={"host": BACKEND.netloc, **(headers or {})})
            r = conn.getresponse()
            return r.status, r.headers, r.read()
        except (http.client.HTTPException, OSError):
            conn.close()
            LOCAL.conn = None
            if attempt:
                raise


def meta(bucket, key):
    s, _, b = backend("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}")
    return json.loads(b) if s == 200 else None


def generation_ok(bucket, key, want):
    if want is None:
        return True
    m = meta(bucket, key)
    return int(want) == (int(m["generation"]) if m else 0)


def insert(bucket, key, data, resource):
    bound = "front" + uuid.uuid4().hex
    ctype = resource.setdefault("contentType", "application/octet-stream")
    body = b"".join([f"--{bound}\r\ncontent-type: application/json\r\n\r\n".encode(), json.dumps({**resource, "name": key}).encode(),
                     f"\r\n--{bound}\r\ncontent-type: {ctype}\r\n\r\n".encode(), data, f"\r\n--{bound}--\r\n".encode()])
    return backend("POST", f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?uploadType=multipart", body,
                   {"content-type": f"multipart/related; boundary={bound}"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536

    def log_message(self, *a):
        pass

    def reply(self, status, body=b"", headers=()):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def xml_error(self, status, code, text=""):
        self.reply(status, f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{text}</Message></Error>".encode(),
                   [("content-type", "application/xml; charset=UTF-8")])

    def body(self):
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            out = []
            while n := int(self.rfile.readline().split(b";")[0], 16):
                out.append(self.rfile.read(n))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(out)
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def resource(self):
        r = {f: self.headers[h] for h, f in FIELDS.items() if self.headers.get(h)}
        md = {k[12:].lower(): v for k, v in self.headers.items() if k.lower().startswith("x-goog-meta-")}
        if md:
            r["metadata"] = md
        return r

    def written(self, result):  # answer of an insert or rewrite -> XML API answer
        status, _, body = result
        if status != 200:
            return self.xml_error(status, "NoSuchKey" if status == 404 else "BackendError", body[:200].decode(errors="replace"))
        m = json.loads(body)
        m = m.get("resource", m)
        self.reply(200, b"", [("etag", f'"{m["etag"]}"'), ("x-goog-generation", m["generation"]), ("x-goog-metageneration", m.get("metageneration", "1"))])

    def pass_through(self):
        data = self.body()
        s, h, b = backend(self.command, self.path, data if data or self.command in ("POST", "PUT") else None,
                          {k: v for k, v in self.headers.items() if k.lower() not in HOP})
        head = [(k, v) for k, v in h.items() if k.lower() not in HOP]
        if self.command == "HEAD" and h.get("content-length"):  # a HEAD keeps the object's length
            self.send_response(s)
            for k, v in head + [("content-length", h["content-length"])]:
                self.send_header(k, v)
            return self.end_headers()
        self.reply(s, b, head)

    def list_after(self, after):  # the backend ignores start-after
        s, h, b = backend("GET", self.path)
        if s == 200:
            root = ElementTree.fromstring(b)
            ns = root.tag.split("}")[0] + "}" if root.tag.startswith("{") else ""
            for c in [c for c in root.findall(ns + "Contents") if c.find(ns + "Key").text.encode() <= after.encode()]:
                root.remove(c)
            if ns:
                ElementTree.register_namespace("", ns[1:-1])
            b = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        self.reply(s, b, [("content-type", "application/xml")])

    def rewrite(self, m, q):
        sb, sk, db, dk = (unquote(x) for x in m.groups())
        data = self.body()
        with WRITE:
            if not generation_ok(db, dk, q.get("ifGenerationMatch", [None])[0]):
                return self.reply(412, b'{"error":{"code":412,"message":"Precondition failed"}}', [("content-type", "application/json")])
            src = meta(sb, sk)
            gen = q.get("ifSourceGenerationMatch", [None])[0]
            if src and gen and src["generation"] != gen:
                return self.reply(412, b'{"error":{"code":412,"message":"Source precondition failed"}}', [("content-type", "application/json")])
            chunk = int(q.get("maxBytesRewrittenPerCall", [0])[0]) or CHUNK
            if src and chunk and int(src["size"]) > chunk:
                size, token = int(src["size"]), q.get("rewriteToken", [None])[0]
                if token and token not in REWRITES:
                    return self.reply(400, b'{"error":{"code":400,"message":"Invalid rewrite token"}}', [("content-type", "application/json")])
                token = token or uuid.uuid4().hex
                done = REWRITES[token] = REWRITES.get(token, 0) + chunk
                if done < size:
                    return self.reply(200, json.dumps({"kind": "storage#rewriteResponse", "totalBytesRewritten": str(done), "objectSize": str(size),
                                                       "done": False, "rewriteToken": token}).encode(), [("content-type", "application/json")])
                REWRITES.pop(token)
            rest = urlencode([(k, v) for k, vs in q.items() for v in vs if k not in ("ifGenerationMatch", "maxBytesRewrittenPerCall", "rewriteToken")])
            s, h, b = backend("POST", urlsplit(self.path).path + ("?" + rest if rest else ""), data, {"content-type": self.headers.get("content-type", "application/json")})
            self.reply(s, b, [("content-type", h.get("content-type", "application/json"))])

    def handle_any(self):
        u = urlsplit(self.path)
        q = parse_qs(u.query, keep_blank_values=True)
        seg = u.path.lstrip("/").split("/", 1)
        rw = re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)/rewriteTo/b/([^/]+)/o/(.+)", u.path)
        if rw and self.command == "POST":
            return self.rewrite(rw, q)
        if self.command == "GET" and "start-after" in q and seg[0] not in RESERVED and (len(seg) < 2 or not seg[1]):
            return self.list_after(q["start-after"][0])
        if seg[0] in RESERVED or len(seg) < 2 or not seg[1] or self.command not in ("PUT", "POST", "DELETE"):
            return self.pass_through()
        bucket, key = unquote(seg[0]), unquote(seg[1])
        want = self.headers.get("x-goog-if-generation-match")
        if self.command == "DELETE":
            if "uploadId" in q:
                return self.reply(204) if UPLOADS.pop(q["uploadId"][0], None) else self.xml_error(404, "NoSuchUpload")
            return self.pass_through()
        data = self.body()
        if self.command == "POST" and "uploads" in q:
            uid = uuid.uuid4().hex
            UPLOADS[uid] = {"resource": self.resource(), "parts": {}}
            x = f"<?xml version='1.0' encoding='UTF-8'?><InitiateMultipartUploadResult><UploadId>{uid}</UploadId></InitiateMultipartUploadResult>"
            return self.reply(200, x.encode(), [("content-type", "application/xml")])
        if "uploadId" in q:
            up = UPLOADS.get(q["uploadId"][0])
            if not up:
                return self.xml_error(404, "NoSuchUpload")
            if self.command == "PUT":
                tag = hashlib.md5(data).hexdigest()
                up["parts"][int(q["partNumber"][0])] = (tag, data)
                return self.reply(200, b"", [("etag", f'"{tag}"')])
            strip = lambda t: t.rsplit("}", 1)[-1]
            listed = [{strip(c.tag): c.text for c in p} for p in ElementTree.fromstring(data) if strip(p.tag) == "Part"]
            listed = [(int(p["PartNumber"]), (p["ETag"] or "").strip('"')) for p in listed]
            if not listed or listed != sorted(listed) or any(up["parts"].get(n, ("",))[0] != e for n, e in listed):
                return self.xml_error(400, "InvalidPart")
            if any(len(up["parts"][n][1]) < 5 << 20 for n, _ in listed[:-1]):
                return self.xml_error(400, "EntityTooSmall")
            with WRITE:
                if not generation_ok(bucket, key, want):
                    return self.xml_error(412, "PreconditionFailed")
                s, _, b = insert(bucket, key, b"".join(up["parts"][n][1] for n, _ in listed), up["resource"])
            if s != 200:
                return self.xml_error(s, "BackendError", b[:200].decode(errors="replace"))
            UPLOADS.pop(q["uploadId"][0], None)
            m = json.loads(b)
            x = f"<?xml version='1.0' encoding='UTF-8'?><CompleteMultipartUploadResult><Bucket>{bucket}</Bucket><ETag>\"{m['etag']}\"</ETag></CompleteMultipartUploadResult>"
            return self.reply(200, x.encode(), [("content-type", "application/xml"), ("x-goog-generation", m["generation"])])
        if self.command != "PUT":
            return self.xml_error(400, "InvalidArgument")
        with WRITE:
            if not generation_ok(bucket, key, want):
                return self.xml_error(412, "PreconditionFailed")
            if src := self.headers.get("x-goog-copy-source"):
                sb, sk = (unquote(x) for x in src.lstrip("/").split("/", 1))
                e = lambda s: quote(s, safe="")
                return self.written(backend("POST", f"/storage/v1/b/{e(sb)}/o/{e(sk)}/rewriteTo/b/{e(bucket)}/o/{e(key)}", b"{}", {"content-type": "application/json"}))
            if (md5 := self.headers.get("content-md5")) and base64.b64decode(md5) != hashlib.md5(data).digest():
                return self.xml_error(400, "BadDigest")
            self.written(insert(bucket, key, data, self.resource()))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = handle_any


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


server = Server((HOST, PORT), Handler)
signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
if "--" in sys.argv:
    die_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    child = subprocess.Popen(sys.argv[sys.argv.index("--") + 1:], preexec_fn=die_with_parent)
    def watch():
        child.wait()
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()
server.serve_forever()
