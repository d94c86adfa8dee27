//! Real server processes, a client that shows what really came over the wire, and a look at what lies in the
//! HA store and on the disk.

// As in the other helpers of tests.
#![allow(unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use forkpoint::blob::invariants::{self, Copies, Violated};
use forkpoint::blob::{
    BlobKey, Digest, JobId, LocalPath, Manifest, Moment, Registry, Settings, StorePath,
};
use forkpoint::store::{Location, Stores};
use serde_json::{Value, json};

use super::support::command;
use super::support::turns::signal;

/// How long anything may take before a test fails.
pub use crate::support::waits::AT_MOST as LONG;
pub use crate::support::waits::{not_before, until, until_asked, until_here};

/// A server process. Killed when dropped.
pub struct Server {
    child: Child,
    pub url: String,
    pub data: PathBuf,
    pub said: Vec<String>,
}

/// What a test gives a server.
#[derive(Clone)]
pub struct Setup {
    pub data: PathBuf,
    pub ha: String,
    pub more: Vec<String>,
    pub fail_point: Option<String>,
    pub settings: Vec<(String, String)>,
    /// Most files and connections that the process may have open.
    pub open_files: Option<u32>,
}

impl Setup {
    pub fn new(data: &Path, ha: &Location) -> Setup {
        Setup {
            data: data.to_path_buf(),
            ha: ha.to_string(),
            more: Vec::new(),
            fail_point: None,
            settings: Vec::new(),
            open_files: None,
        }
    }

    pub fn with(mut self, args: &[&str]) -> Setup {
        self.more.extend(args.iter().map(ToString::to_string));
        self
    }

    /// The same with another value of this option.
    pub fn but(mut self, option: &str, value: &str) -> Setup {
        if let Some(at) = self.more.iter().position(|a| a == option) {
            self.more.drain(at..at + 2);
        }
        self.with(&[option, value])
    }

    pub fn dying_at(mut self, point: &str) -> Setup {
        self.fail_point = Some(point.to_string());
        self
    }

    /// Starts and hopes: `Err` is what it said before it ended, and its exit code.
    pub fn try_start(&self) -> Result<Server, (Option<i32>, String)> {
        let data = self.data.to_str().unwrap();
        let mut args = vec!["blob", "serve", "--data", data, "--ha", &self.ha];
        if !self.more.iter().any(|a| a == "--bind") {
            args.extend(["--bind", "127.0.0.1:0"]);
        }
        args.extend(self.more.iter().map(String::as_str));
        let mut command = command(&args);
        if let Some(most) = self.open_files {
            command = with_open_files(&command, most);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.envs(self.settings.iter().map(|(k, v)| (k, v)));
        match &self.fail_point {
            Some(point) => command.env("FORKPOINT_FAIL_POINT", point),
            None => command.env_remove("FORKPOINT_FAIL_POINT"),
        };
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (lines, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    // Read on, so that the process never waits for us.
                }
            }
        });
        let mut heard = Vec::new();
        let until = Instant::now() + LONG;
        loop {
            match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let at = line.strip_prefix("listening on ").map(str::to_string);
                    heard.push(line);
                    if let Some(url) = at {
                        return Ok(Server {
                            child,
                            url,
                            data: self.data.clone(),
                            said: heard,
                        });
                    }
                }
                Err(_) => {
                    let _ = child.kill();
                    let code = child.wait().unwrap().code();
                    return Err((code, heard.join("\n")));
                }
            }
        }
    }

    pub fn start(&self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err((code, said)) => panic!("the server ended with {code:?}: {said}"),
        }
    }
}

/// The same command in a shell that lowers the limit first.
fn with_open_files(command: &Command, most: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n $0 && exec \"$@\"", &most.to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

impl Server {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        request(&self.url, method, path, &[], body)
    }

    pub fn json(&self, method: &str, path: &str, body: &Value) -> Option<Answer> {
        self.call(method, path, body.to_string().as_bytes())
    }

    pub fn pause(&self) {
        signal(&self.child, "STOP");
    }

    pub fn resume(&self) {
        signal(&self.child, "CONT");
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits.
    pub fn stop(mut self) -> Option<i32> {
        signal(&self.child, "TERM");
        self.wait_for_end().code()
    }

    fn wait_for_end(&mut self) -> std::process::ExitStatus {
        until_here("the server ends", || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap()
    }

    /// Waits until it has died at its fail point.
    pub fn has_died(mut self, what: &str) {
        died(&mut self.child, what);
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.call("GET", "/metrics", b"").unwrap().text();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }
}

/// Waits until a process has died at its fail point.
pub fn died(child: &mut Child, what: &str) {
    until_here(&format!("{what}: the fail point is reached"), || {
        child.try_wait().unwrap().is_some()
    });
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{what}: {status}");
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came, to the last byte.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// All of the body that was announced came.
    pub complete: bool,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The code of a problem document.
    pub fn code(&self) -> String {
        assert_eq!(
            self.headers["content-type"], "application/problem+json",
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        problem["code"].as_str().unwrap().to_string()
    }
}

pub fn connect(url: &str) -> std::io::Result<TcpStream> {
    let host = url.strip_prefix("http://").unwrap();
    let at = host.to_socket_addrs()?.next().unwrap();
    let stream = TcpStream::connect_timeout(&at, LONG)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.set_write_timeout(Some(LONG))?;
    Ok(stream)
}

/// One request on a connection of its own; nothing if the server went away before the answer's head was there.
pub fn request(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut stream = connect(url).ok()?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(n, _)| *n == "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(n, _)| *n == "content-length") {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    // It may answer and close before it has read everything.
    let sent = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
    let _ = sent;
    read_answer(&mut stream, method == "HEAD")
}

pub fn read_answer(stream: &mut impl Read, is_head: bool) -> Option<Answer> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
        }
    }
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: BTreeMap<String, String> = lines
        .filter_map(|l| l.split_once(": "))
        .map(|(n, v)| (n.to_ascii_lowercase(), v.to_string()))
        .collect();
    let body = bytes[end + 4..].to_vec();
    let announced = headers
        .get("content-length")
        .and_then(|v| v.parse::<usize>().ok());
    Some(Answer {
        status,
        complete: is_head || announced.is_none_or(|n| n == body.len()),
        headers,
        body,
    })
}

pub use crate::support::noise::noise;

pub fn job(name: &str) -> JobId {
    JobId::parse(name).unwrap()
}

pub fn path(job: &str, bytes: &[u8]) -> String {
    format!("/v1/jobs/{job}/blobs/{}", Digest::of(bytes))
}

/// One batch, step by step; each gives what came back.
pub struct Batch<'a> {
    pub server: &'a Server,
    pub job: &'a str,
    pub session: u64,
}

impl Server {
    /// A batch of this job.
    pub fn batch<'a>(&'a self, job: &'a str, session: u64) -> Batch<'a> {
        let server = self;
        Batch {
            server,
            job,
            session,
        }
    }
}

impl Batch<'_> {
    fn at(&self, rest: &str) -> String {
        format!("/v1/jobs/{}/uploads/{:016x}{rest}", self.job, self.session)
    }

    pub fn begin(&self, members: &[(&[u8], &str)]) -> Option<Answer> {
        let members: Vec<Value> = members
            .iter()
            .map(|(b, class)| json!({ "digest": Digest::of(b).to_string(), "class": class }))
            .collect();
        let body = json!({ "session": format!("{:016x}", self.session), "members": members });
        self.server
            .json("POST", &format!("/v1/jobs/{}/uploads", self.job), &body)
    }

    pub fn send(&self, bytes: &[u8]) -> Option<Answer> {
        let at = self.at(&format!("/blobs/{}", Digest::of(bytes)));
        self.server.call("PUT", &at, bytes)
    }

    pub fn commit(&self) -> Option<Answer> {
        self.server.call("POST", &self.at("/commit"), b"")
    }

    /// All of it; true if the commit was acknowledged.
    pub fn upload(&self, members: &[(&[u8], &str)]) -> bool {
        let ok = |a: Option<Answer>| a.filter(|a| a.status / 100 == 2);
        let Some(begun) = ok(self.begin(members)) else {
            return false;
        };
        let missing: BTreeSet<String> = begun.json()["missing"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d.as_str().unwrap().to_string())
            .collect();
        for (bytes, _) in members {
            if missing.contains(&Digest::of(bytes).to_string()) && ok(self.send(bytes)).is_none() {
                return false;
            }
        }
        ok(self.commit()).is_some()
    }
}

pub fn register(server: &Server, job: &str, members: &[&[u8]]) -> Option<Answer> {
    let digests: Vec<String> = members.iter().map(|b| Digest::of(b).to_string()).collect();
    let body = json!({ "event": "registered", "digests": digests });
    server.json("POST", &format!("/v1/jobs/{job}/events"), &body)
}

pub fn finish(server: &Server, job: &str) -> Option<Answer> {
    let body = json!({ "event": "terminal", "outcome": "finished" });
    server.json("POST", &format!("/v1/jobs/{job}/events"), &body)
}

/// Reads a blob, and fails if a single wrong byte came, whatever else happened.
pub fn read(server: &Server, job: &str, bytes: &[u8]) -> Option<Answer> {
    let answer = server.call("GET", &path(job, bytes), b"")?;
    if answer.status == 200 {
        assert!(
            bytes.starts_with(&answer.body),
            "wrong bytes of a blob of {job}"
        );
        assert_eq!(answer.complete, answer.body.len() == bytes.len());
    }
    Some(answer)
}

pub fn is_readable(server: &Server, job: &str, bytes: &[u8]) -> bool {
    read(server, job, bytes).is_some_and(|a| a.status == 200 && a.complete)
}

/// What lies in the HA store and in the local directory, by name.
pub struct Lying {
    pub manifests: BTreeMap<JobId, BTreeMap<u64, Manifest>>,
    pub copies: Copies,
    pub ha: BTreeMap<String, u64>,
    pub foreign: Vec<String>,
}

pub async fn lying(stores: &Stores, ha: &Location, data: &Path) -> Lying {
    let folder = ha.join("default").unwrap();
    let mut found = Lying {
        manifests: BTreeMap::new(),
        copies: Copies::default(),
        ha: BTreeMap::new(),
        foreign: Vec::new(),
    };
    for (at, stat) in stores.list(&folder).await.unwrap() {
        let name = folder
            .strip(&at)
            .unwrap()
            .trim_start_matches('/')
            .to_string();
        match StorePath::parse(&name) {
            Ok(StorePath::Manifest(job, number)) => {
                // One that is being replaced may go between the listing and the look.
                if let Ok(bytes) = stores.read(&at, 1 << 20).await {
                    let manifest = Manifest::from_json(&bytes, number).unwrap();
                    found
                        .manifests
                        .entry(job)
                        .or_default()
                        .insert(number, manifest);
                }
            }
            Ok(StorePath::Object(job, _, object)) => {
                if stat.size == object.digest.size {
                    found.copies.objects.insert((job, object));
                }
            }
            Ok(_) => {}
            Err(_) => found.foreign.push(name.clone()),
        }
        found.ha.insert(name, stat.size);
    }
    for file in walk(data) {
        let name = file
            .strip_prefix(data)
            .unwrap()
            .to_str()
            .unwrap()
            .to_string();
        match LocalPath::parse(&name) {
            Ok(LocalPath::Blob(job, digest)) => {
                if std::fs::metadata(&file).is_ok_and(|m| m.len() == digest.size) {
                    found.copies.local.insert(BlobKey { job, digest });
                }
            }
            Ok(_) => {}
            Err(_) => found.foreign.push(name),
        }
    }
    found
}

/// All files below a folder in which others remove some meanwhile.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().is_ok_and(|t| t.is_dir()) {
                true => pending.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

impl Lying {
    /// The memory that the newest manifests describe.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::new(Settings::default());
        for (job, chain) in &self.manifests {
            let (_, newest) = chain.last_key_value().unwrap();
            registry.adopt(job, newest, true, Moment(0));
        }
        registry
    }

    /// I2, I3, I7 and I8 over what lies there; `acked` are blobs whose holder was acknowledged.
    pub fn violations(&self, acked: &BTreeSet<BlobKey>) -> Vec<Violated> {
        let registry = self.registry();
        let mut found = invariants::held_are_readable(&registry, acked, &self.copies);
        found.extend(invariants::referenced_have_copies(&registry, &self.copies));
        found.extend(invariants::ended_jobs_are_closed(&registry));
        for chain in self.manifests.values() {
            let order: Vec<(u64, u64)> = chain.values().map(|m| (m.sequence, m.epoch)).collect();
            found.extend(invariants::no_change_by_fenced(&order));
        }
        found
    }

    /// I4: copies that no manifest names, once everything is quiet.
    pub fn unreachable(&self) -> Vec<Violated> {
        let registry = self.registry();
        invariants::only_reachable_remains(&registry, &self.copies, Moment(0))
    }
}

pub fn key(job_name: &str, bytes: &[u8]) -> BlobKey {
    BlobKey {
        job: job(job_name),
        digest: Digest::of(bytes),
    }
}
