//! `forkpoint blob serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;

use crate::blob::{
    BlobServer, HttpConfig, HttpListener, JobId, LocalOptions, Mode, OnExit, RecoverJobs,
    ServerConfig, SpaceRule, TlsFiles,
};
use crate::error::Result;
use crate::store::Stores;

use super::super::{Output, exit, interrupt};
use super::offline::{recovery_json, recovery_text};
use super::place::{Place, directory, size, span};

/// Own a cluster and serve it over HTTP, until Ctrl-C or SIGTERM.
///
/// The start takes the next epoch: an earlier server of this cluster id is fenced off, whatever it does later.
/// It refuses an HA store that ignores create-if-absent. What it listens on, and what the recovery found, is
/// printed on stderr.
///
/// Beyond the local machine it serves only with --tokens, or --tls-client-ca, or --insecure.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The local directory: nothing else may live there (blob.storage.directory).
    #[arg(long, value_name = "DIR", value_parser = directory)]
    data: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Where to listen; port 0 takes a free one (blob.server.bind).
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878")]
    bind: SocketAddr,
    /// How others reach this server, such as https://blobs.example:7878 (blob.server.advertise). Left out: clients of a
    /// server that this one takes over are not sent here.
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// A second listener for /livez, /readyz and /metrics alone.
    #[arg(long, value_name = "ADDRESS")]
    operations: Option<SocketAddr>,
    /// A JSON file of tokens; read again when it changes (blob.auth.tokens).
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Certificate chain of this server, PEM (blob.tls.certificate).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, PEM (blob.tls.key).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Clients need a certificate of one of these authorities, PEM (blob.tls.client-ca).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Serve anybody who reaches an address beyond the local machine.
    #[arg(long)]
    insecure: bool,
    /// How long a blob that nobody holds stays at least (blob.retention.interval).
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = span, alias = "cleanup-interval")]
    retention_interval: Duration,
    /// How often cleanup looks. Left out: a quarter of the interval, at most a minute (blob.sweep.period).
    #[arg(long, value_name = "TIME", value_parser = span)]
    sweep_period: Option<Duration>,
    /// Age, by the HA store's clock, at which an object goes that no manifest names. Left out: the retention
    /// interval (blob.orphan.min-age).
    #[arg(long, value_name = "TIME", value_parser = span)]
    orphan_min_age: Option<Duration>,
    /// How long an upload session lives without a byte (blob.upload.idle-ttl).
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = span)]
    upload_idle_ttl: Duration,
    /// How long an ended job is remembered (blob.tombstone.keep).
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = span)]
    tombstone_keep: Duration,
    /// What becomes of local files at the end (blob.local.on-exit).
    #[arg(long, value_enum, default_value_t = AtExit::Delete)]
    on_exit: AtExit,
    /// Most bytes of local files (blob.local.max-bytes).
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    max_bytes: u64,
    /// Bytes that must stay free on the disk (blob.local.min-free).
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    min_free: u64,
    /// A local file that was verified is read and compared again after this time; 0 does it at each use
    /// (blob.local.verify). What is sent is compared in any case, block by block.
    #[arg(long, value_name = "TIME", default_value = "4h", value_parser = span)]
    verify_again_after: Duration,
    /// Largest blob (blob.server.max-blob-size) [default: no limit].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_blob_size: Option<u64>,
    /// Most bytes of one job (blob.job.quota) [default: no limit].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    job_quota: Option<u64>,
    /// A peer that moves nothing for so long is cut (blob.client.socket.timeout).
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = span)]
    idle_timeout: Duration,
    /// Most connections at once.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Most jobs that are known at once, ended ones that are still remembered included (blob.server.max-jobs).
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    max_jobs: usize,
    /// Most upload sessions that are open at once (blob.server.max-sessions).
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_sessions: usize,
    /// Blocks read for downloads at once (blob.server.max-transfers).
    #[arg(long, value_name = "N", default_value_t = 50)]
    max_transfers: usize,
    /// How long one operation of the HA store may take, repeats included.
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = span)]
    ha_patience: Duration,
    /// Look so often whether the HA store answers and this server still owns the cluster; /readyz says what was
    /// found. One listing each time.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = span)]
    watch_every: Duration,
    /// Read and compare all copies so often, and repair them [default: never].
    #[arg(long, value_name = "TIME", value_parser = span)]
    scrub_every: Option<Duration>,
    /// No faster than so many bytes a second (blob.scrub.rate).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    scrub_rate: Option<u64>,
    /// Jobs that come back; the blobs of others are staged. Left out: all. Repeat it for several.
    #[arg(long = "recover-job", value_name = "JOB")]
    recover_jobs: Vec<JobId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AtExit {
    Delete,
    Keep,
}

impl Args {
    fn server(&self) -> Result<ServerConfig> {
        let mut config =
            ServerConfig::new(self.place.ha()?, self.place.cluster.clone(), &self.data)
                .with_retention(self.retention_interval);
        config.local = LocalOptions {
            space: SpaceRule {
                max_bytes: self.max_bytes,
                min_free: self.min_free,
            },
            on_exit: match self.on_exit {
                AtExit::Delete => OnExit::Delete,
                AtExit::Keep => OnExit::Keep,
            },
            verify_again_after: self.verify_again_after,
            ..config.local
        };
        config.settings.upload_idle = self.upload_idle_ttl;
        config.settings.tombstone_keep = self.tombstone_keep;
        config.settings.largest_blob = self.max_blob_size.unwrap_or(u64::MAX);
        config.settings.job_quota = self.job_quota.unwrap_or(u64::MAX);
        config.sweep_period = self.sweep_period.unwrap_or(config.sweep_period);
        config.orphan_min_age = self.orphan_min_age.unwrap_or(config.orphan_min_age);
        config.advertise = self.advertise.clone();
        config.max_transfers = self.max_transfers;
        config.max_jobs = self.max_jobs;
        config.max_sessions = self.max_sessions;
        config.idle_timeout = self.idle_timeout;
        config.ha_patience = self.ha_patience;
        config.scrub_rate = self.scrub_rate;
        if !self.recover_jobs.is_empty() {
            config.recover = RecoverJobs::Only(self.recover_jobs.iter().cloned().collect());
        }
        Ok(config)
    }

    fn http(&self) -> HttpConfig {
        let mut config = HttpConfig::new(self.bind);
        config.operations = self.operations;
        config.tokens = self.tokens.clone();
        config.insecure = self.insecure;
        config.tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificates), Some(key)) => Some(TlsFiles {
                certificates: certificates.clone(),
                key: key.clone(),
                client_authorities: self.tls_client_ca.clone(),
            }),
            _ => None,
        };
        config.limits.idle_timeout = self.idle_timeout;
        config.limits.most_connections = self.max_connections;
        config
    }
}

fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let (config, http) = (args.server()?, args.http());
    // What is wrong here is found out before anybody is fenced off.
    let listener = HttpListener::bind(http).await?;
    if args.insecure && !args.bind.ip().is_loopback() {
        say("warning: anybody who reaches this address may read, upload and end jobs\n");
    }
    let (server, recovery) = BlobServer::open(config, stores.clone()).await?;
    say(&recovery_text(&recovery));
    let service = listener.serve(server.clone());
    let scheme = if args.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    if let Some(at) = service.operations_address()? {
        say(&format!("operations on http://{at}\n"));
    }
    say(&format!("listening on {scheme}://{}\n", service.address()?));
    let background = tokio::spawn({
        let server = server.clone();
        let (every, watch_every) = (args.scrub_every, args.watch_every);
        async move {
            let scrub = scrub_now_and_then(&server, every);
            tokio::join!(server.maintain(), scrub, watch(&server, watch_every))
        }
    });
    service.run(interrupt::asked_to_stop_once()).await;
    background.abort();
    let epoch = server.epoch();
    let fenced = server.fenced().cloned();
    server.close().await?;
    let ended = match &fenced {
        None => format!("epoch {epoch} ended\n"),
        Some(by) => format!(
            "epoch {epoch} ended; it had been taken over{}\n",
            by.by_whom()
        ),
    };
    Ok(Output {
        text: ended,
        json: json!({
            "epoch": epoch,
            "fenced_by": fenced.and_then(|f| f.by),
            "recovery": recovery_json(&recovery)?,
        }),
        svg: None,
        code: exit::DONE,
    })
}

/// Says it once if another server has taken over: whoever looks after this one must know.
async fn watch(server: &BlobServer, every: Duration) {
    server.watch(every).await;
    if let Some(by) = server.fenced() {
        say(&format!(
            "taken over{}; this server answers 421 from now on, and can be stopped\n",
            by.by_whom()
        ));
    }
}

async fn scrub_now_and_then(server: &BlobServer, every: Option<Duration>) {
    let Some(every) = every else { return };
    loop {
        tokio::time::sleep(every).await;
        match server.scrub(Mode::Apply).await {
            Ok(report) => tracing::info!(
                copies = report.copies,
                found = report.findings.len(),
                lost = report.lost.len(),
                "scrubbed"
            ),
            Err(failure) => tracing::warn!(%failure, "a scrub failed"),
        }
    }
}
