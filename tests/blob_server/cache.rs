//! The cache of a process that dies: C16, while it downloads, and C17, with files of live jobs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forkpoint::blob::{BlobCache, CacheConfig, Digest, LocalOptions, LocalPath, OnExit};

use super::harness::*;
use super::support::{command, temp};

/// `blob get` through a cache.
fn get(server: &str, cache: &Path, bytes: &[u8], out: &Path) -> Command {
    let digest = Digest::of(bytes).to_string();
    let mut command = command(&[
        "blob",
        "get",
        "a",
        &digest,
        out.to_str().unwrap(),
        "--cache",
        cache.to_str().unwrap(),
        "--server",
        server,
    ]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = super::support::walk(below);
    found.retain(|f| f.is_file());
    found
}

/// The files of blobs in a cache. Every name is one of ours, and a file at a blob's path is all of it.
fn whole_files(cache: &Path) -> usize {
    let mut whole = 0;
    for file in files(cache) {
        let name = file.strip_prefix(cache).unwrap().to_str().unwrap();
        match LocalPath::parse(name).unwrap_or_else(|e| panic!("{name}: {e}")) {
            LocalPath::Blob(_, digest) => {
                let there = Digest::of(&std::fs::read(&file).unwrap());
                assert_eq!(there, digest, "{name}");
                whole += 1;
            }
            LocalPath::Part(_) | LocalPath::Lock | LocalPath::Version => {}
            other => panic!("{other:?} in a cache that died"),
        }
    }
    whole
}

fn parts(cache: &Path) -> usize {
    std::fs::read_dir(cache.join("tmp")).unwrap().count()
}

fn served(dir: &Path, root: &forkpoint::store::Location, blobs: &[&[u8]]) -> Server {
    let server = Setup::new(&dir.join("data"), &root.join("ha").unwrap()).start();
    let members: Vec<(&[u8], &str)> = blobs.iter().map(|b| (*b, "retained")).collect();
    assert!(server.batch("a", 1).upload(&members));
    assert_eq!(register(&server, "a", blobs).unwrap().status, 204);
    server
}

/// C16.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_dies_while_it_downloads_leaves_no_part_of_a_file() {
    let (dir, root) = temp();
    let bytes = noise(1, 9 << 20);
    let server = served(dir.path(), &root, &[&bytes]);
    // What is left in the temporary folder, and at the blob's path.
    for (point, part, file) in [
        ("part-written", 1, 0),
        ("part-written:3", 1, 0),
        ("part-complete", 1, 0),
        ("published", 0, 1),
    ] {
        let cache = dir
            .path()
            .join(format!("cache-{}", point.replace(':', "-")));
        let out = dir.path().join(format!("out-{}", point.replace(':', "-")));
        let mut dying = get(&server.url, &cache, &bytes, &out);
        let mut dying = dying.env("FORKPOINT_FAIL_POINT", point).spawn().unwrap();
        died(&mut dying, point);
        assert_eq!(
            (parts(&cache), whole_files(&cache)),
            (part, file),
            "{point}"
        );
        assert!(!out.exists(), "{point}");
        let before = server.metric("forkpoint_blob_downloads_total");
        let again = get(&server.url, &cache, &bytes, &out).output().unwrap();
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success(), "{point}: {said}");
        assert_eq!(std::fs::read(&out).unwrap(), bytes, "{point}");
        assert_eq!((parts(&cache), whole_files(&cache)), (0, 1), "{point}");
        // A complete file need not come again.
        let downloads = server.metric("forkpoint_blob_downloads_total") - before;
        assert_eq!(downloads, u64::from(file == 0), "{point}");
    }
}

/// C17: what a dead process had in use is there for the next one, which compares it before it uses it, counts nobody,
/// and gives it the whole interval.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_dies_with_files_in_use_leaves_them_to_the_next() {
    let (dir, root) = temp();
    let (one, two) = (noise(1, 3 << 20), noise(2, 50_000));
    let server = served(dir.path(), &root, &[&one, &two]);
    let (cache, out) = (dir.path().join("cache"), dir.path().join("out"));
    assert!(
        get(&server.url, &cache, &two, &dir.path().join("two"))
            .status()
            .unwrap()
            .success()
    );
    // It writes to a pipe that nobody empties: the job and the file are in use when it is killed.
    let mut holding = get(&server.url, &cache, &one, Path::new("-"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let there = || async { files(&cache.join("jobs")).len() == 2 };
    until_asked("the file is there", there).await;
    std::thread::sleep(Duration::from_millis(200));
    assert!(holding.try_wait().unwrap().is_none(), "it did not wait");
    holding.kill().unwrap();
    holding.wait().unwrap();
    assert_eq!(whole_files(&cache), 2);
    let url = server.url.clone();
    server.kill();

    // Without any source: both come from the directory.
    for (bytes, name) in [(&one, "one"), (&two, "two-again")] {
        let out = dir.path().join(name);
        let got = get(&url, &cache, bytes, &out).output().unwrap();
        assert!(
            got.status.success(),
            "{}",
            String::from_utf8_lossy(&got.stderr)
        );
        assert_eq!(std::fs::read(&out).unwrap(), *bytes);
    }
    // A bit went while nobody looked, and nothing about the file tells: it is compared all the same.
    let digest = Digest::of(&one);
    let file = cache.join(format!("jobs/a/{:02x}/{digest}", digest.sha256[0]));
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    let mut bad = one.clone();
    bad[2_000_000] ^= 1;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bad).unwrap();
    let opened = std::fs::File::options().write(true).open(&file).unwrap();
    opened.set_modified(modified).unwrap();
    drop(opened);
    let refused = get(&url, &cache, &one, &out).output().unwrap();
    assert!(!refused.status.success());
    assert!(!out.exists());
    assert_eq!(files(&cache.join("quarantine")).len(), 1);
    std::fs::remove_dir_all(cache.join("quarantine")).unwrap();
    let server = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap()).start();
    let again = get(&server.url, &cache, &one, &out).output().unwrap();
    assert!(again.status.success());
    assert_eq!(std::fs::read(&out).unwrap(), one);
    assert_eq!(whole_files(&cache), 2);

    // Nobody is counted, and the interval begins with the next process.
    let mut config = CacheConfig::new(LocalOptions::new(&cache));
    let interval = Duration::from_millis(1500);
    config.retention = interval;
    config.local.on_exit = OnExit::Keep;
    let began = Instant::now();
    let next = BlobCache::open(config, Vec::new()).await.unwrap();
    let guard = next.attach(&job("a"));
    drop(guard.get(&digest).await.unwrap());
    for file in next.files() {
        assert_eq!((file.pins, file.job_references), (0, 1), "{file:?}");
    }
    drop(guard);
    for file in next.files() {
        assert_eq!((file.pins, file.job_references), (0, 0), "{file:?}");
    }
    until("they lapse", || next.stats().files == 0).await;
    not_before(began, interval, "they lapse");
    assert_eq!(files(&cache.join("jobs")).len(), 0);
}
