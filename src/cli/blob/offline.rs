//! What the verbs without a server share: the start as an owner, and reports as text and JSON.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::blob::{BlobServer, Inspection, OnExit, RecoveryReport, ServerConfig};
use crate::error::Result;
use crate::store::Stores;

use super::place::{Place, size, span};
use super::serve::unwritable;

/// A cluster whose server does not run.
#[derive(Debug, clap::Args)]
pub(super) struct Offline {
    #[command(flatten)]
    pub(super) place: Place,
    /// The local directory of the server that is not running.
    #[arg(long, value_name = "DIR")]
    pub(super) data: PathBuf,
    /// How long a blob that nobody holds stays at least.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = span)]
    pub(super) retention_interval: std::time::Duration,
    /// Age at which an object goes that no manifest names. Left out: the retention interval.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(super) orphan_min_age: Option<std::time::Duration>,
    /// Most bytes of local files.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub(super) max_bytes: u64,
}

impl Offline {
    /// Takes the cluster over, as a server would: one that runs is fenced off. Local files stay.
    pub(super) async fn own(&self, stores: &Stores) -> Result<(BlobServer, RecoveryReport)> {
        let place = &self.place;
        let mut config = ServerConfig::new(place.ha()?, place.cluster.clone(), &self.data)
            .with_retention(self.retention_interval);
        config.orphan_min_age = self.orphan_min_age.unwrap_or(config.orphan_min_age);
        config.local.on_exit = OnExit::Keep;
        config.local.space.max_bytes = self.max_bytes;
        BlobServer::open(config, stores.clone()).await
    }
}

pub(super) fn document(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(unwritable)
}

pub(super) fn recovery_json(report: &RecoveryReport) -> Result<Value> {
    document(report)
}

pub(super) fn recovery_text(report: &RecoveryReport) -> String {
    let mut text = format!(
        "epoch {}: {} jobs with {} blobs; {} local files adopted\n",
        report.epoch, report.jobs, report.blobs, report.local_adopted
    );
    let mut line = |count: u64, what: &str| {
        if count > 0 {
            let _ = writeln!(text, "  {count} {what}");
        }
    };
    line(report.staged_objects, "objects in no manifest: staged");
    line(
        report.leftover_objects,
        "objects of ended jobs: being removed",
    );
    line(report.local_staged, "local files of no known blob: staged");
    line(report.quarantined, "damaged local files: in the quarantine");
    line(
        report.repaired.len() as u64,
        "objects written again from local copies",
    );
    for key in &report.lost {
        let _ = writeln!(text, "  lost: {key} has no copy left");
    }
    for job in &report.refused {
        let _ = writeln!(text, "  not served: job {}: {}", job.job, job.why);
    }
    for name in &report.foreign {
        let _ = writeln!(text, "  left alone: {name}");
    }
    text
}

pub(super) fn inspection_text(found: &Inspection) -> String {
    let mut text = format!("{} epoch {}", found.folder, found.epoch);
    if let Some(owner) = found.owner.as_ref().and_then(|o| o.address.as_ref()) {
        let _ = write!(text, ", last owner at {owner}");
    }
    text.push('\n');
    for job in &found.jobs {
        let _ = writeln!(
            text,
            "  {}  {}  {} blobs, {} bytes, {} without holder",
            job.job, job.state, job.blobs, job.bytes, job.unheld
        );
        for digest in &job.missing {
            let _ = writeln!(text, "    missing: {digest}");
        }
    }
    for job in &found.refused {
        let _ = writeln!(text, "  unreadable: job {}: {}", job.job, job.why);
    }
    if !found.orphans.is_empty() {
        let bytes: u64 = found.orphans.iter().map(|o| o.bytes).sum();
        let due = found.orphans.iter().filter(|o| o.due).count();
        let _ = writeln!(
            text,
            "  {} objects in no manifest, {bytes} bytes, {due} of them old enough to go",
            found.orphans.len()
        );
    }
    for name in &found.foreign {
        let _ = writeln!(text, "  none of ours: {name}");
    }
    text
}
