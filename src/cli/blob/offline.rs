//! What the verbs without a server share: the start as an owner, and reports as text and JSON.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::blob::{
    BlobServer, HaStore, Inspection, OnExit, RecoveryReport, RefusedJob, ServerConfig, Settings,
    check_directory,
};
use crate::error::{Error, ErrorKind, Result};
use crate::report::count;
use crate::store::Stores;

use super::super::exit;
use super::place::{Place, directory, size, span};

/// A cluster whose server does not run.
#[derive(Debug, clap::Args)]
pub(super) struct Offline {
    #[command(flatten)]
    pub(super) place: Place,
    /// The local directory of the server that is not running.
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub(super) data: PathBuf,
    /// How long a blob that nobody holds stays at least.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = span)]
    pub(super) retention_interval: std::time::Duration,
    /// Age at which an object goes that no manifest names. Left out: the retention interval, or 30m if that is 0.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(super) orphan_min_age: Option<std::time::Duration>,
    /// Most bytes of local files.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub(super) max_bytes: u64,
}

impl Offline {
    /// The HA store, for a look that disturbs nobody. What could not be done afterwards is not looked at either: in
    /// a directory that is somebody else's.
    pub(super) fn look(&self, stores: &Stores) -> Result<HaStore> {
        check_directory(&self.data)?;
        self.ha(stores)
    }

    fn ha(&self, stores: &Stores) -> Result<HaStore> {
        HaStore::new(stores.clone(), &self.place.ha()?, &self.place.cluster)
    }

    /// How old an object in no manifest must be to go. An upload of a server that was just fenced off is young.
    pub(super) fn orphan_min_age(&self) -> std::time::Duration {
        let age = match self.retention_interval.is_zero() {
            true => Settings::default().retention,
            false => self.retention_interval,
        };
        self.orphan_min_age.unwrap_or(age)
    }

    /// Takes the cluster over, as a server would: one that runs is fenced off. Local files stay.
    pub(super) async fn own(&self, stores: &Stores) -> Result<(BlobServer, RecoveryReport)> {
        let place = &self.place;
        let mut config = ServerConfig::new(place.ha()?, place.cluster.clone(), &self.data)
            .with_retention(self.retention_interval);
        config.orphan_min_age = self.orphan_min_age();
        config.local.on_exit = OnExit::Keep;
        config.local.space.max_bytes = self.max_bytes;
        self.look(stores)?.owned_epoch().await?;
        BlobServer::open(config, stores.clone()).await
    }
}

pub(super) fn document(value: &impl Serialize) -> Result<Value> {
    // An answer that cannot be written as JSON is a bug.
    serde_json::to_value(value).map_err(|e| {
        Error::new(
            ErrorKind::Internal,
            format!("an answer cannot be written: {e}"),
        )
    })
}

pub(super) fn recovery_json(report: &RecoveryReport) -> Result<Value> {
    document(report)
}

pub(super) fn recovery_text(report: &RecoveryReport) -> String {
    let objects = |n| count(n, "object", "objects");
    let files = |n| count(n, "local file", "local files");
    let mut text = format!(
        "epoch {}: {} with {}; {} adopted\n",
        report.epoch,
        count(report.jobs, "job", "jobs"),
        count(report.blobs, "blob", "blobs"),
        files(report.local_adopted)
    );
    let mut line = |n: u64, what: String| {
        if n > 0 {
            let _ = writeln!(text, "  {what}");
        }
    };
    let (staged, left) = (report.staged_objects, report.leftover_objects);
    line(
        staged,
        format!(
            "{} in no manifest: removed when old enough",
            objects(staged)
        ),
    );
    line(
        left,
        format!("{} of ended jobs: being removed", objects(left)),
    );
    let unknown = report.local_staged;
    line(
        unknown,
        format!(
            "{} of no known blob: removed when old enough",
            files(unknown)
        ),
    );
    let bad = report.quarantined;
    line(bad, format!("{} damaged: in the quarantine", files(bad)));
    let repaired = report.repaired.len() as u64;
    line(
        repaired,
        format!("{} written again from local copies", objects(repaired)),
    );
    for key in &report.lost {
        let _ = writeln!(text, "  LOST: {key} has no good copy left");
    }
    text.push_str(&refused_text(&report.refused));
    for name in &report.foreign {
        let _ = writeln!(text, "  left alone: {name}");
    }
    text
}

/// Jobs whose manifests cannot be read.
pub(super) fn refused_text(jobs: &[RefusedJob]) -> String {
    let line = |j: &RefusedJob| format!("  not served: job {}: {}\n", j.job, j.why);
    jobs.iter().map(line).collect()
}

/// The exit code of what a look from outside has found.
pub(super) fn inspection_code(found: &Inspection) -> u8 {
    match (found.is_damaged(), found.refused.is_empty()) {
        (true, _) => exit::DAMAGED,
        (false, false) => exit::INCOMPLETE,
        (false, true) => exit::DONE,
    }
}

pub(super) fn inspection_text(found: &Inspection) -> String {
    let mut text = format!("{} epoch {}", found.folder, found.epoch);
    if let Some(address) = &found.owner.address {
        let _ = write!(text, ", last owner at {address}");
    }
    text.push('\n');
    for job in &found.jobs {
        let _ = writeln!(
            text,
            "  {}  {}  {}, {}, {} without holder",
            job.job,
            job.state,
            count(job.blobs, "blob", "blobs"),
            count(job.bytes, "byte", "bytes"),
            job.unheld
        );
        for digest in &job.missing {
            let _ = writeln!(text, "    missing: {digest}");
        }
        for digest in &job.lost {
            let _ = writeln!(text, "    LOST, no good copy is known: {digest}");
        }
    }
    text.push_str(&refused_text(&found.refused));
    if !found.orphans.is_empty() {
        let bytes: u64 = found.orphans.iter().map(|o| o.bytes).sum();
        let due = found.orphans.iter().filter(|o| o.due).count();
        let _ = writeln!(
            text,
            "  {} in no manifest, {}; old enough to go: {due}",
            count(found.orphans.len() as u64, "object", "objects"),
            count(bytes, "byte", "bytes")
        );
    }
    for name in &found.foreign {
        let _ = writeln!(text, "  none of ours: {name}");
    }
    text
}
