//! A blob server in this process, and a proxy that does to its answers what networks do.

// Each test uses some of it.
#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forkpoint::blob::client::{BlobClient, ClientConfig, Content, Upload};
use forkpoint::blob::{
    BlobCache, BlobKey, BlobServer, BlobSource, CacheConfig, Class, ClusterId, Digest, HaSource,
    HttpConfig, HttpService, JobEvent, JobId, LocalOptions, ServerConfig, ServerSource,
};
use forkpoint::store::{Location, Options, Stores};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

#[path = "../support/noise.rs"]
mod noise;

pub fn job(name: &str) -> JobId {
    JobId::parse(name).unwrap()
}

/// Bytes that do not repeat, the same for the same seed.
pub fn bytes(size: usize, seed: u64) -> Vec<u8> {
    noise::noise(seed, size)
}

pub struct Served {
    pub dir: tempfile::TempDir,
    pub server: BlobServer,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    done: Option<tokio::task::JoinHandle<()>>,
}

pub fn stores() -> Stores {
    Stores::new(Options::default())
}

impl Served {
    pub async fn start() -> Served {
        Served::start_in(tempfile::tempdir().unwrap(), "127.0.0.1:0", |_, _| {}).await
    }

    pub async fn start_in(
        dir: tempfile::TempDir,
        bind: &str,
        change: impl FnOnce(&mut ServerConfig, &mut HttpConfig),
    ) -> Served {
        let ha = Location::parse(dir.path().join("ha").to_str().unwrap()).unwrap();
        std::fs::create_dir_all(dir.path().join("ha")).unwrap();
        let cluster = ClusterId::parse("c1").unwrap();
        let mut config = ServerConfig::new(ha, cluster, dir.path().join("server"));
        let mut http = HttpConfig::new(bind.parse().unwrap());
        change(&mut config, &mut http);
        let (server, _) = BlobServer::open(config, stores()).await.unwrap();
        let service = HttpService::bind(server.clone(), http).await.unwrap();
        let address = service.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(service.run(async {
            let _ = stopped.await;
        }));
        Served {
            dir,
            server,
            address,
            stop: Some(stop),
            done: Some(done),
        }
    }

    /// Ends the service and the server; the directory stays.
    pub async fn stop(mut self) -> tempfile::TempDir {
        let _ = self.stop.take().unwrap().send(());
        self.done.take().unwrap().await.unwrap();
        self.server.close().await.unwrap();
        self.dir
    }

    pub fn config(&self) -> ClientConfig {
        quick(self.address)
    }

    pub fn client(&self) -> BlobClient {
        BlobClient::new(self.config()).unwrap()
    }

    pub fn ha(&self) -> PathBuf {
        self.dir.path().join("ha/c1")
    }

    pub fn ha_source(&self) -> Arc<dyn BlobSource> {
        let url = Location::parse(self.dir.path().join("ha").to_str().unwrap()).unwrap();
        let source = HaSource::new(stores(), &url, &ClusterId::parse("c1").unwrap());
        Arc::new(source.unwrap())
    }

    pub fn source(&self) -> Arc<dyn BlobSource> {
        source(self.address)
    }

    /// Uploads and registers one blob of a job.
    pub async fn ship(&self, job: &JobId, bytes: &[u8], class: Class) -> Digest {
        let upload = Upload {
            name: None,
            class,
            content: Content::Bytes(bytes.to_vec().into()),
        };
        let client = self.client();
        let digest = client.upload(job, &[upload]).await.unwrap().digests[0];
        let digests = [digest].into();
        let event = JobEvent::Registered { digests };
        client.job_event(job, &event).await.unwrap();
        digest
    }

    /// The files of retained objects of a job in the HA store.
    pub fn objects(&self, job: &JobId) -> Vec<PathBuf> {
        files(&self.ha().join(format!("jobs/{job}/retained")))
    }
}

/// A client that gives up in less than a second.
pub fn quick(at: SocketAddr) -> ClientConfig {
    let mut config = ClientConfig::new(&format!("http://{at}")).unwrap();
    config.backoff = Duration::from_millis(10);
    config.idle_timeout = Duration::from_secs(5);
    config
}

pub fn source(at: SocketAddr) -> Arc<dyn BlobSource> {
    Arc::new(ServerSource::new(BlobClient::new(quick(at)).unwrap()))
}

pub fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![below.to_path_buf()];
    while let Some(folder) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => pending.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}

/// Changes a file that may be read-only.
pub fn tamper(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    use std::os::unix::fs::PermissionsExt;
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(path, bytes).unwrap();
}

pub fn cache_config(dir: &Path) -> CacheConfig {
    let mut config = CacheConfig::new(LocalOptions::new(dir));
    config.backoff = Duration::from_millis(10);
    config.idle_timeout = Duration::from_secs(5);
    config.retries = 3;
    config
}

pub async fn cache(dir: &Path, sources: Vec<Arc<dyn BlobSource>>) -> BlobCache {
    BlobCache::open(cache_config(dir), sources).await.unwrap()
}

pub fn key(job: &JobId, digest: &Digest) -> BlobKey {
    BlobKey {
        job: job.clone(),
        digest: *digest,
    }
}

/// What a proxy does to the answers on one connection.
#[derive(Debug, Clone, Copy)]
pub enum Trick {
    /// Nothing.
    Fair,
    /// Cuts the connection after so many bytes, the head included.
    CutAfter(u64),
    /// Flips a bit of the byte with this number.
    Flip(u64),
    /// Takes the request and never answers.
    Silent,
    /// Resets at once.
    Refuse,
}

pub struct Proxy {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    /// Bytes of answers that came from the server.
    pub answered: Arc<AtomicU64>,
}

impl Proxy {
    /// Does the tricks in turn, one for each connection; the last one for all that follow.
    pub async fn start(to: SocketAddr, tricks: &[Trick]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            answered: Arc::default(),
        };
        let tricks = Arc::new(Mutex::new(VecDeque::from(tricks.to_vec())));
        let (connections, answered) = (Arc::clone(&proxy.connections), Arc::clone(&proxy.answered));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let trick = {
                    let mut tricks = tricks.lock().unwrap();
                    match tricks.len() {
                        1 => tricks[0],
                        _ => tricks.pop_front().unwrap(),
                    }
                };
                tokio::spawn(pass(client, to, trick, Arc::clone(&answered)));
            }
        });
        proxy
    }
}

async fn pass(client: TcpStream, to: SocketAddr, trick: Trick, answered: Arc<AtomicU64>) {
    if matches!(trick, Trick::Refuse) {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    if matches!(trick, Trick::Silent) {
        let mut sink = [0; 1024];
        while from_client.read(&mut sink).await.is_ok_and(|n| n > 0) {}
        return;
    }
    let Ok(server) = TcpStream::connect(to).await else {
        return;
    };
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    let mut buffer = vec![0; 64 * 1024];
    let mut at = 0u64;
    while let Ok(n) = from_server.read(&mut buffer).await {
        if n == 0 {
            break;
        }
        answered.fetch_add(n as u64, Ordering::SeqCst);
        let mut piece = &mut buffer[..n];
        if let Trick::Flip(number) = trick
            && (at..at + n as u64).contains(&number)
        {
            piece[(number - at) as usize] ^= 1;
        }
        let mut last = false;
        if let Trick::CutAfter(limit) = trick
            && at + n as u64 >= limit
        {
            piece = &mut piece[..(limit - at) as usize];
            last = true;
        }
        at += piece.len() as u64;
        if to_client.write_all(piece).await.is_err() || last {
            break;
        }
    }
    up.abort();
}
