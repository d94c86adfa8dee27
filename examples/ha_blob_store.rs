//! Ships two jars, starts a job, sends a message to three receivers through the blob store, kills the server, lets
//! another one recover, and ends the job.
//!
//! `cargo run --example ha_blob_store` on local disk, or with the location of an HA store, such as
//! `cargo run --example ha_blob_store -- s3://bucket/blobs`. The server is a process of its own, so that it can be
//! killed.

// An example talks to a person.
#![allow(clippy::print_stdout)]

#[cfg(unix)]
mod example {
    use std::collections::BTreeSet;
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    use forkpoint::blob::client::{BlobClient, ClientConfig, Content, Upload};
    use forkpoint::blob::{
        BlobCache, BlobServer, CacheConfig, Class, ClusterId, Digest, DisplayName, HaSource,
        HttpConfig, HttpService, JobEvent, JobId, LocalOptions, Message, OffloadRule, Outcome,
        ReceiverId, ServerConfig, ServerSource,
    };
    use forkpoint::store::{Location, Stores};
    use forkpoint::{Error, ErrorKind, Result};

    const CLUSTER: &str = "example";

    fn failed(e: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unavailable, e.to_string())
    }

    /// What the example shows must be so.
    fn expect(what: &str, is: bool) -> Result<()> {
        match is {
            true => Ok(()),
            false => Err(Error::corrupt(format!("it is not so that {what}"))),
        }
    }

    /// The server process: owns the cluster and serves it until it is killed.
    async fn serve(ha: &str, directory: &str) -> Result<()> {
        let config = ServerConfig::new(Location::parse(ha)?, ClusterId::parse(CLUSTER)?, directory);
        let (server, recovery) = BlobServer::open(config, Stores::from_env()).await?;
        let http = HttpConfig::new("127.0.0.1:0".parse().map_err(failed)?);
        let service = HttpService::bind(server.clone(), http).await?;
        println!("{} {}", service.address()?, recovery.epoch);
        std::io::stdout().flush().map_err(failed)?;
        let background = server.clone();
        tokio::spawn(async move { background.maintain().await });
        service.run(std::future::pending()).await;
        Ok(())
    }

    struct Process {
        child: Child,
        url: String,
    }

    impl Process {
        fn start(ha: &str, directory: &Path) -> Result<Process> {
            let mut child = Command::new(std::env::current_exe().map_err(failed)?)
                .args(["--serve", ha])
                .arg(directory)
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            let out = child.stdout.take().ok_or_else(|| failed("no output"))?;
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
            let (address, epoch) = line
                .trim()
                .split_once(' ')
                .ok_or_else(|| failed("no server"))?;
            println!("server of epoch {epoch} at {address}");
            let url = format!("http://{address}");
            Ok(Process { child, url })
        }

        /// As by `kill -9`.
        fn kill(&mut self) -> Result<()> {
            self.child.kill().map_err(failed)?;
            self.child.wait().map_err(failed)?;
            Ok(())
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.kill();
        }
    }

    /// The cache of one task manager: the HA store first, then the server.
    async fn task_manager(ha: &str, client: &BlobClient, directory: &Path) -> Result<BlobCache> {
        let stores = Stores::from_env();
        let ha = HaSource::new(stores, &Location::parse(ha)?, &ClusterId::parse(CLUSTER)?)?;
        let config = CacheConfig::new(LocalOptions::new(directory));
        let server = ServerSource::new(client.clone());
        BlobCache::open(config, vec![Arc::new(ha), Arc::new(server)]).await
    }

    async fn holders(client: &BlobClient, message: &Message) -> Result<usize> {
        match message {
            Message::Blob(sent) => Ok(client.why(&sent.key).await?.blob.holders.len()),
            Message::Inline(_) => Err(Error::corrupt("the message was not off-loaded")),
        }
    }

    async fn story(ha: &str, directory: &Path) -> Result<()> {
        let job = JobId::parse(&format!("orders-{}", std::process::id()))?;
        let mut first = Process::start(ha, &directory.join("server-1"))?;
        let client = BlobClient::new(ClientConfig::new(&first.url)?)?;

        let mut jars = Vec::new();
        for (name, size) in [("job.jar", 3_000_000), ("connector.jar", 500_000)] {
            let path = directory.join(name);
            let bytes: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
            std::fs::write(&path, bytes).map_err(failed)?;
            jars.push(Upload {
                name: Some(DisplayName::parse(name)?),
                class: Class::Retained,
                content: Content::File(path),
            });
        }
        let shipped = client.upload(&job, &jars).await?;
        println!("shipped {} jars as one batch", shipped.sent.len());
        let digests: BTreeSet<Digest> = shipped.digests.iter().copied().collect();
        client
            .job_event(&job, &JobEvent::Registered { digests })
            .await?;
        println!("{job} is registered and holds them");

        let names = ["tm-1", "tm-2", "tm-3"];
        let names: Vec<ReceiverId> = names
            .iter()
            .map(|n| ReceiverId::parse(n))
            .collect::<Result<_>>()?;
        let receivers = names.iter().cloned().collect();
        let text = vec![7u8; 2_000_000];
        let rule = OffloadRule::default();
        let message = client
            .offload(&job, text.clone().into(), &receivers, rule)
            .await?;
        println!(
            "a message of {} bytes has {} holders",
            text.len(),
            holders(&client, &message).await?
        );
        let mut caches = Vec::new();
        for (n, me) in names.iter().enumerate() {
            let cache = task_manager(ha, &client, &directory.join(me.as_str())).await?;
            let guard = cache.attach(&job);
            for digest in &shipped.digests {
                guard.get(digest).await?;
            }
            let got = guard
                .receive(&client, &message, me, |bytes| Ok(bytes.len()))
                .await?;
            got.acknowledged?;
            let left = holders(&client, &message).await?;
            println!(
                "{me} has both jars, has decoded {} bytes and acknowledged; {left} holders are left",
                got.value
            );
            expect(
                "each acknowledgement takes one holder off",
                left == names.len() - 1 - n,
            )?;
            caches.push(cache);
        }

        first.kill()?;
        println!("the server is killed");
        let late = task_manager(ha, &client, &directory.join("tm-4")).await?;
        let jar = shipped.digests.first().ok_or_else(|| failed("no jar"))?;
        let handle = late.attach(&job).get(jar).await?;
        println!(
            "tm-4 gets {} bytes from the HA store without a server",
            handle.digest().size
        );
        drop(handle);

        // Another machine: an empty local directory.
        let mut second = Process::start(ha, &directory.join("server-2"))?;
        client.set_server(&second.url)?;
        let list = client.blobs(&job).await?;
        let held = list.blobs.iter().filter(|b| !b.holders.is_empty()).count();
        println!(
            "recovered: {} blobs, {held} of them held by the job",
            list.blobs.len()
        );
        expect(
            "both jars are there and held, and the message is gone",
            list.blobs.len() == 2 && held == 2,
        )?;
        expect("the server gives what it never had locally", {
            let key = forkpoint::blob::BlobKey {
                job: job.clone(),
                digest: *jar,
            };
            let mut download = client.download(&key, None).await?;
            let mut digester = forkpoint::blob::Digester::default();
            while let Some(chunk) = download.chunk().await? {
                digester.update(&chunk);
            }
            digester.finish() == *jar
        })?;

        let outcome = Outcome::Finished;
        client
            .job_event(&job, &JobEvent::Terminal { outcome })
            .await?;
        for cache in caches.into_iter().chain([late]) {
            cache.close().await?;
        }
        let folder = Location::parse(ha)?.join(&format!("{CLUSTER}/jobs/{job}"))?;
        let mut left = Vec::new();
        // Removal follows the answer.
        for _ in 0..100 {
            let listed = Stores::from_env().list(&folder).await?;
            left = listed
                .into_iter()
                .map(|(at, _)| at)
                .filter(|at| !at.to_string().contains("/manifest/"))
                .collect();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        expect(
            "nothing but the tombstone is left in the HA store",
            left.is_empty(),
        )?;
        println!("{job} is over; its blobs are gone");
        second.kill()
    }

    pub(crate) async fn run() -> Result<()> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if let ["--serve", ha, directory] = args[..] {
            return serve(ha, directory).await;
        }
        let directory =
            std::env::temp_dir().join(format!("forkpoint-blobs-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("ha")).map_err(failed)?;
        let local = directory.join("ha").display().to_string();
        let done = story(args.first().unwrap_or(&local.as_str()), &directory).await;
        let _ = std::fs::remove_dir_all(&directory);
        done
    }
}

#[cfg(unix)]
#[tokio::main]
async fn main() -> forkpoint::Result<()> {
    example::run().await
}

#[cfg(not(unix))]
fn main() {}
