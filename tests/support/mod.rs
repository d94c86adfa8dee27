//! What the tests share: fixtures laid where a test wants them, emulators, and a view of a folder.

// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

pub mod engine;
pub mod lab;
pub mod mounted;
pub mod noise;
pub mod synthetic;
pub mod turns;
pub mod waits;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bytes::Bytes;
use forkpoint::progress::Silent;
use forkpoint::snapshot::flink::{self, FlinkPath, NewPath};
use forkpoint::snapshot::{CommitObject, Scope};
use forkpoint::store::{Location, Options, Stores};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A real checkpoint of the repository.
#[derive(Debug, Clone)]
pub struct Fixture {
    pub name: String,
    folder: PathBuf,
    root_uri: String,
    meta: Value,
}

/// All fixtures, sorted by name.
pub fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints");
    let mut found: Vec<Fixture> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("meta.json").is_file())
        .map(Fixture::open)
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() >= 12, "the fixtures are incomplete");
    found
}

pub fn fixture(name: &str) -> Fixture {
    fixtures()
        .into_iter()
        .find(|f| f.name == name)
        .unwrap_or_else(|| panic!("no fixture {name}"))
}

impl Fixture {
    fn open(folder: PathBuf) -> Fixture {
        let meta: Value =
            serde_json::from_slice(&std::fs::read(folder.join("meta.json")).unwrap()).unwrap();
        Fixture {
            name: folder.file_name().unwrap().to_str().unwrap().to_string(),
            root_uri: meta["root_uri"].as_str().unwrap().to_string(),
            folder,
            meta,
        }
    }

    /// Where the fixture was made.
    pub fn root_uri(&self) -> &str {
        &self.root_uri
    }

    /// The fixture's folder of files in the repository, as it was made.
    pub fn files_root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The snapshots below the root that are whole, by path.
    pub fn snapshots(&self) -> Vec<String> {
        let broken = self.broken();
        self.paths().filter(|p| !broken.contains(p)).collect()
    }

    /// The snapshots that Flink itself could not restore, and their siblings: they lack the same.
    pub fn broken(&self) -> Vec<String> {
        let job = |path: &str| path.split('/').next().unwrap().to_string();
        let jobs: Vec<String> = self
            .paths()
            .filter(|p| self.about(p).get("broken").is_some())
            .map(|p| job(&p))
            .collect();
        self.paths().filter(|p| jobs.contains(&job(p))).collect()
    }

    fn paths(&self) -> impl Iterator<Item = String> + '_ {
        self.meta["snapshots"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["path"].as_str().unwrap().to_string())
    }

    /// What meta.json says of one snapshot.
    pub fn about(&self, path: &str) -> &Value {
        self.meta["snapshots"]
            .as_array()
            .unwrap()
            .iter()
            .find(|s| s["path"] == path)
            .unwrap()
    }

    /// The newest whole snapshot.
    pub fn newest(&self) -> String {
        self.snapshots()
            .pop()
            .unwrap_or_else(|| panic!("{} has no whole snapshot", self.name))
    }

    /// Writes the fixture below `root` as if its job had run there: paths in the metadata that
    /// begin with the place where it was made begin with `root` instead. Uses the codec alone,
    /// nothing of what forks.
    pub async fn lay(&self, stores: &Stores, root: &Location) {
        let files = self.files_root();
        for path in walk(&files) {
            let relative = path
                .strip_prefix(&files)
                .unwrap()
                .to_str()
                .unwrap()
                .to_string();
            let mut bytes = std::fs::read(&path).unwrap();
            if path.file_name().unwrap() == "_metadata" {
                bytes = self.rehome(&bytes, root);
            }
            stores
                .put(&root.join(&relative).unwrap(), Bytes::from(bytes), true)
                .await
                .unwrap();
        }
    }

    /// Copies the files below `folder` as they are, as a tool does that knows nothing of metadata.
    pub fn copy_as_made(&self, folder: &Path) {
        let files = self.files_root();
        for path in walk(&files) {
            let to = folder.join(path.strip_prefix(&files).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&path, to).unwrap();
        }
    }

    fn rehome(&self, bytes: &[u8], root: &Location) -> Vec<u8> {
        use flink::Location as At;
        let made = FlinkPath::parse(&self.root_uri).unwrap().to_string();
        flink::decode(bytes)
            .unwrap()
            .encode_with(&mut |reference| {
                let (At::Absolute { path, .. }
                | At::Segment { path, .. }
                | At::Directory { path, .. }) = reference.location
                else {
                    return Ok(None);
                };
                let text = path.to_str()?;
                let rest = text
                    .strip_prefix(made.as_str())
                    .unwrap_or_else(|| panic!("{text} is not below {made}"));
                Ok(Some(NewPath::Absolute(format!("{root}{rest}"))))
            })
            .unwrap()
    }
}

/// All files below a folder, sorted.
pub fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path)
            } else {
                found.push(path)
            }
        }
    }
    found.sort();
    found
}

/// Every object below `root` with the SHA-256 of its content.
pub async fn manifest(stores: &Stores, root: &Location) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (at, _) in stores.list(root).await.unwrap() {
        let bytes = stores.read(&at, u64::MAX).await.unwrap();
        let digest: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        all.insert(at.to_string(), digest);
    }
    all
}

pub async fn delete_all(stores: &Stores, root: &Location) {
    for (at, _) in stores.list(root).await.unwrap() {
        stores.delete(&at).await.unwrap();
    }
    assert!(stores.list(root).await.unwrap().is_empty());
}

/// Scope and size of each object of a snapshot, sorted: what must survive a fork.
pub async fn shape(stores: &Stores, snapshot: &Location) -> Vec<(Scope, u64)> {
    let snapshot = CommitObject::read(stores, snapshot)
        .await
        .unwrap()
        .snapshot()
        .unwrap();
    let stats = forkpoint::verify::look_at_objects(stores, &snapshot, &Silent)
        .await
        .unwrap();
    let mut shape: Vec<(Scope, u64)> = snapshot
        .objects
        .iter()
        .map(|o| (o.scope, stats[&o.location].as_ref().unwrap().size))
        .collect();
    shape.sort();
    shape
}

pub fn at(text: &str) -> Location {
    Location::parse(text).unwrap()
}

/// A temporary folder of this machine, as a location.
pub fn temp() -> (tempfile::TempDir, Location) {
    let dir = tempfile::tempdir().unwrap();
    let location = at(dir.path().to_str().unwrap());
    (dir, location)
}

/// Stores that know nothing of the environment.
pub fn local_stores() -> Stores {
    Stores::new(Options::default())
}

/// A service that an emulator stands in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    S3,
    Gcs,
    Azure,
}

impl Service {
    pub const ALL: [Service; 3] = [Service::S3, Service::Gcs, Service::Azure];

    fn endpoint_variable(self) -> &'static str {
        match self {
            Service::S3 => "FORKPOINT_TEST_S3_ENDPOINT",
            Service::Gcs => "FORKPOINT_TEST_GCS_ENDPOINT",
            Service::Azure => "FORKPOINT_TEST_AZURE_ENDPOINT",
        }
    }

    /// Is its emulator there? If not, says on stderr what is left out, or fails where all
    /// emulators are required.
    pub fn is_there(self, test: &str) -> bool {
        if std::env::var(self.endpoint_variable()).is_ok() {
            return true;
        }
        let required = std::env::var("FORKPOINT_TEST_EMULATORS").is_ok_and(|v| v == "required");
        assert!(!required, "{} is not set", self.endpoint_variable());
        // Not by a macro: the test harness would swallow it.
        let _ = writeln!(
            std::io::stderr(),
            "left out: {test} on {self:?}, for want of {} (tests/run-all.sh starts the emulators)",
            self.endpoint_variable()
        );
        false
    }

    /// A fresh place in the first (0) or second (1) bucket.
    pub fn place(self, bucket: usize, name: &str) -> Location {
        let buckets =
            std::env::var("FORKPOINT_TEST_BUCKETS").unwrap_or_else(|_| "emu-a emu-b".into());
        let bucket = buckets.split_whitespace().nth(bucket).unwrap().to_string();
        let unique: u64 = rand::random();
        match self {
            Service::S3 => at(&format!("s3://{bucket}/{name}-{unique:016x}")),
            Service::Gcs => at(&format!("gs://{bucket}/{name}-{unique:016x}")),
            Service::Azure => at(&format!("az://{bucket}/{name}-{unique:016x}")),
        }
    }
}

/// The settings by which the emulators are found, as environment variables of the providers.
pub fn emulator_settings() -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    for (theirs, ours) in [
        ("AWS_ENDPOINT_URL", "FORKPOINT_TEST_S3_ENDPOINT"),
        ("AWS_ACCESS_KEY_ID", "FORKPOINT_TEST_S3_ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "FORKPOINT_TEST_S3_SECRET_KEY"),
        ("STORAGE_EMULATOR_HOST", "FORKPOINT_TEST_GCS_ENDPOINT"),
        ("AZURE_STORAGE_ENDPOINT", "FORKPOINT_TEST_AZURE_ENDPOINT"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "FORKPOINT_TEST_AZURE_ACCOUNT"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "FORKPOINT_TEST_AZURE_KEY"),
    ] {
        if let Ok(value) = std::env::var(ours) {
            settings.push((theirs, value));
        }
    }
    settings.push(("AWS_REGION", "us-east-1".into()));
    settings
}

pub fn emulator_stores() -> Stores {
    let mut options = Options::default();
    for (name, value) in emulator_settings() {
        options = options.with(name, value);
    }
    Stores::new(options)
}

/// The command, with static credentials for the emulators and nothing else of the providers.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if [
            "AWS_", "GOOGLE_", "AZURE_", "AZURITE_", "STORAGE_", "RUST_LOG",
        ]
        .iter()
        .any(|p| name.starts_with(p))
        {
            command.env_remove(&*name);
        }
    }
    command.envs(emulator_settings());
    // Without credentials of its own a client would ask the cloud's metadata address.
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
    ] {
        if std::env::var_os("FORKPOINT_TEST_S3_ACCESS_KEY").is_none() {
            command.env(name, value);
        }
    }
    command.args(args);
    command
}

pub fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs the command with `--format json`; returns exit code and document.
pub fn run_json(args: &[&str]) -> (i32, Value) {
    let output = run(&[args, &["--format", "json"]].concat());
    let code = output.status.code().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!(
            "{args:?} exited {code}, {e}: {text:?} {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (code, json)
}
