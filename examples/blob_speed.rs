//! Timings of the blob cache and of downloads, for `benches/peers/blob.py`; one JSON document on stdout.
//!
//! - `blob_speed warm SERVER JOB DIGEST DIRECTORY ROUNDS`: a blob through a warm cache against reading and hashing
//!   the same file directly, in turns.
//! - `blob_speed cold SERVER JOB DIGEST DIRECTORY`: one fetch into an empty cache, with the peak of this process's memory.
//! - `blob_speed raw URL ROUNDS`: a plain HTTP GET whose bytes are thrown away, for any server.

// It talks to a script.
#![allow(clippy::print_stdout)]

#[cfg(unix)]
mod speed {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Instant;

    use forkpoint::blob::client::{BlobClient, ClientConfig};
    use forkpoint::blob::{
        BlobCache, CacheConfig, Digest, Digester, JobId, LocalOptions, ServerSource,
    };
    use forkpoint::{Error, ErrorKind, Result};
    use futures::StreamExt;
    use serde_json::json;

    const PIECE_BYTES: usize = 1 << 20;

    fn io(e: std::io::Error) -> Error {
        Error::new(ErrorKind::Unavailable, e.to_string())
    }

    async fn open(server: &str, directory: &str) -> Result<BlobCache> {
        let client = BlobClient::new(ClientConfig::new(server)?)?;
        let mut local = LocalOptions::new(directory);
        local.space.max_bytes = 64 << 30;
        let source = Arc::new(ServerSource::new(client));
        BlobCache::open(CacheConfig::new(local), vec![source]).await
    }

    fn read_and_hash(path: &std::path::Path) -> Result<Digest> {
        let mut file = std::fs::File::open(path).map_err(io)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut digester = Digester::default();
        loop {
            match file.read(&mut piece).map_err(io)? {
                0 => return Ok(digester.finish()),
                n => digester.update(piece.get(..n).unwrap_or_default()),
            }
        }
    }

    async fn warm(server: &str, job: &str, digest: &str, dir: &str, rounds: usize) -> Result<()> {
        let (job, digest) = (JobId::parse(job)?, Digest::parse(digest)?);
        let cache = open(server, dir).await?;
        let guard = cache.attach(&job);
        let began = Instant::now();
        let handle = guard.get(&digest).await?;
        let cold = began.elapsed().as_secs_f64();
        let path = handle
            .path()
            .map(std::path::Path::to_path_buf)
            .unwrap_or_default();
        drop(handle);
        let (mut direct, mut cached, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let began = Instant::now();
            if read_and_hash(&path)? != digest {
                return Err(Error::corrupt("the file is damaged"));
            }
            direct.push(began.elapsed().as_secs_f64());
            let began = Instant::now();
            let handle = guard.get(&digest).await?;
            handles.push(began.elapsed().as_secs_f64());
            let mut pieces = handle.stream(None)?;
            let mut bytes = 0;
            while let Some(piece) = pieces.next().await {
                bytes += piece?.len() as u64;
            }
            if bytes != digest.size {
                return Err(Error::corrupt("bytes are missing"));
            }
            cached.push(began.elapsed().as_secs_f64());
        }
        println!(
            "{}",
            json!({ "cold": cold, "direct": direct, "cached": cached, "handle": handles })
        );
        drop(guard);
        cache.close().await
    }

    fn memory(what: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status
            .lines()
            .find(|l| l.starts_with(what))
            .unwrap_or_default();
        let kib = line.split_whitespace().nth(1).and_then(|n| n.parse().ok());
        kib.unwrap_or(0)
    }

    async fn cold(server: &str, job: &str, digest: &str, dir: &str) -> Result<()> {
        let (job, digest) = (JobId::parse(job)?, Digest::parse(digest)?);
        let cache = open(server, dir).await?;
        let guard = cache.attach(&job);
        let idle = memory("VmRSS:");
        let began = Instant::now();
        let handle = guard.get(&digest).await?;
        let seconds = began.elapsed().as_secs_f64();
        let peak = memory("VmHWM:");
        println!(
            "{}",
            json!({ "seconds": seconds, "idle_kib": idle, "peak_kib": peak, "bytes": digest.size })
        );
        drop((handle, guard));
        cache.close().await
    }

    /// One GET; gives the seconds and the bytes of the body.
    fn get(host: &str, path: &str, piece: &mut [u8]) -> Result<(f64, u64)> {
        let began = Instant::now();
        let mut stream = TcpStream::connect(host).map_err(io)?;
        write!(
            stream,
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .map_err(io)?;
        let (mut total, mut head) = (0u64, None);
        loop {
            let n = stream.read(piece).map_err(io)?;
            if n == 0 {
                break;
            }
            if head.is_none() {
                let first = piece.get(..n).unwrap_or_default();
                let end = first.windows(4).position(|w| w == b"\r\n\r\n");
                if !first.starts_with(b"HTTP/1.1 200") {
                    return Err(Error::corrupt(String::from_utf8_lossy(first).into_owned()));
                }
                head = end.map(|e| e as u64 + 4);
            }
            total += n as u64;
        }
        Ok((began.elapsed().as_secs_f64(), total - head.unwrap_or(0)))
    }

    fn raw(url: &str, rounds: usize) -> Result<()> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut piece = vec![0; PIECE_BYTES];
        let mut seconds = Vec::new();
        let mut bytes = 0;
        for _ in 0..rounds {
            let (one, size) = get(host, path, &mut piece)?;
            seconds.push(one);
            bytes = size;
        }
        println!("{}", json!({ "seconds": seconds, "bytes": bytes }));
        Ok(())
    }

    pub(crate) async fn run() -> Result<()> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let rounds = |n: &str| n.parse().map_err(|_| Error::invalid("rounds is a number"));
        match args[..] {
            ["warm", server, job, digest, dir, n] => {
                warm(server, job, digest, dir, rounds(n)?).await
            }
            ["cold", server, job, digest, dir] => cold(server, job, digest, dir).await,
            ["raw", url, n] => raw(url, rounds(n)?),
            _ => Err(Error::invalid("see the head of examples/blob_speed.rs")),
        }
    }
}

#[cfg(unix)]
#[tokio::main]
async fn main() -> forkpoint::Result<()> {
    speed::run().await
}

#[cfg(not(unix))]
fn main() {}
