//! Counters of a server, in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::lifecycle::{BlobState, Class};
use super::Inner;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// How much it is.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $text:literal, $help:literal;)*) => {
        /// What a server has done since its start.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Metrics {
            fn render(&self, text: &mut String) {
                $(
                    let _ = writeln!(text, "# HELP {} {}", $text, $help);
                    let _ = writeln!(text, "# TYPE {} counter", $text);
                    let _ = writeln!(text, "{} {}", $text, self.$name.get());
                )*
            }
        }
    };
}

counters! {
    /// Members of batches that have arrived.
    uploads => "forkpoint_blob_uploads_total", "Members of batches that have arrived.";
    /// Members that did not.
    uploads_failed => "forkpoint_blob_uploads_failed_total", "Members of batches that failed to arrive.";
    /// Bytes that came.
    bytes_in => "forkpoint_blob_received_bytes_total", "Bytes received.";
    /// Downloads that were begun.
    downloads => "forkpoint_blob_downloads_total", "Downloads begun.";
    /// Bytes that went.
    bytes_out => "forkpoint_blob_sent_bytes_total", "Bytes sent.";
    /// Local copies made from the HA store.
    fetches => "forkpoint_blob_fetches_total", "Local copies made from the HA store.";
    /// Damaged local copies that were found.
    damaged_local => "forkpoint_blob_damaged_local_total", "Damaged local copies found.";
    /// Damaged or missing objects that were found.
    damaged_ha => "forkpoint_blob_damaged_ha_total", "Damaged or missing objects found in the HA store.";
    /// Copies that were replaced from the other place.
    repaired => "forkpoint_blob_repaired_total", "Copies replaced from the other place.";
    /// Commits that stand.
    commits => "forkpoint_blob_commits_total", "Manifests committed.";
    /// Commits that failed and were taken back.
    commits_failed => "forkpoint_blob_commits_failed_total", "Commits that failed.";
    /// Milliseconds that commits took.
    commit_millis => "forkpoint_blob_commit_milliseconds_total", "Time that commits took.";
    /// Objects removed.
    deletes => "forkpoint_blob_deletes_total", "Objects removed from the HA store.";
    /// Removals that failed and are tried again.
    deletes_failed => "forkpoint_blob_deletes_failed_total", "Removals that failed and are tried again.";
    /// Sweeps that were done.
    sweeps => "forkpoint_blob_sweeps_total", "Sweeps done.";
    /// Sweeps that failed.
    sweep_failures => "forkpoint_blob_sweep_failures_total", "Sweeps that failed.";
    /// Files given up for others.
    evictions => "forkpoint_blob_evictions_total", "Local files given up so that others fit.";
    /// Requests that were refused: by limits, tokens, or form.
    rejected => "forkpoint_blob_rejected_total", "Requests refused by limits, tokens or form.";
    /// Connections that were cut because nothing moved.
    stalled => "forkpoint_blob_stalled_total", "Connections cut because nothing moved.";
}

fn gauge(text: &mut String, name: &str, help: &str, values: &[(String, u64)]) {
    let _ = writeln!(text, "# HELP {name} {help}");
    let _ = writeln!(text, "# TYPE {name} gauge");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// Counters, and what there is now.
pub(super) fn render(inner: &Inner) -> String {
    let mut text = String::new();
    inner.metrics.render(&mut text);
    let states = [
        (BlobState::Staged, "staged"),
        (BlobState::Referenced, "referenced"),
        (BlobState::Expiring, "expiring"),
        (BlobState::Deleting, "deleting"),
        (BlobState::Lost, "lost"),
    ];
    let mut blobs = [[0u64; 2]; 5];
    let mut bytes = [[0u64; 2]; 5];
    let (mut sessions, mut going, mut orphans, mut pinned) = (0u64, 0u64, 0u64, 0u64);
    let cells = inner.all_cells();
    for (id, cell) in &cells {
        let work = cell.work();
        sessions += work.registry.sessions().count() as u64;
        orphans += work.orphans.len() as u64;
        let Some(job) = work.registry.job(id) else {
            continue;
        };
        going += job.going.len() as u64;
        for (digest, blob) in &job.blobs {
            let state = states
                .iter()
                .position(|(s, _)| *s == blob.state())
                .unwrap_or(0);
            let class = usize::from(blob.class == Class::Retained);
            blobs[state][class] += 1;
            bytes[state][class] = bytes[state][class].saturating_add(digest.size);
            pinned += u64::from(blob.pins > 0);
        }
    }
    let labelled = |counts: &[[u64; 2]; 5]| {
        let mut values = Vec::new();
        for (row, (_, state)) in counts.iter().zip(&states) {
            for (count, class) in row.iter().zip(["recreatable", "retained"]) {
                values.push((format!("{{state=\"{state}\",class=\"{class}\"}}"), *count));
            }
        }
        values
    };
    let one = |value: u64| vec![(String::new(), value)];
    gauge(
        &mut text,
        "forkpoint_blob_blobs",
        "Blobs by state and class.",
        &labelled(&blobs),
    );
    gauge(
        &mut text,
        "forkpoint_blob_bytes",
        "Bytes by state and class.",
        &labelled(&bytes),
    );
    gauge(
        &mut text,
        "forkpoint_blob_jobs",
        "Jobs that are known.",
        &one(cells.len() as u64),
    );
    gauge(
        &mut text,
        "forkpoint_blob_sessions",
        "Upload sessions open.",
        &one(sessions),
    );
    gauge(
        &mut text,
        "forkpoint_blob_pinned",
        "Blobs with readers.",
        &one(pinned),
    );
    gauge(
        &mut text,
        "forkpoint_blob_going",
        "Objects dropped and not removed yet.",
        &one(going),
    );
    gauge(
        &mut text,
        "forkpoint_blob_orphans",
        "Objects in no manifest.",
        &one(orphans),
    );
    gauge(
        &mut text,
        "forkpoint_blob_epoch",
        "The epoch of this owner.",
        &one(inner.epoch),
    );
    let fenced = u64::from(inner.fenced.get().is_some());
    gauge(
        &mut text,
        "forkpoint_blob_fenced",
        "1 once another owner has taken over.",
        &one(fenced),
    );
    let usage = inner.local.usage();
    gauge(
        &mut text,
        "forkpoint_blob_local_bytes",
        "Bytes in local files.",
        &one(usage.used),
    );
    gauge(
        &mut text,
        "forkpoint_blob_local_reserved_bytes",
        "Bytes reserved.",
        &one(usage.reserved),
    );
    gauge(
        &mut text,
        "forkpoint_blob_local_files",
        "Local files.",
        &one(usage.files),
    );
    let quarantined = inner.local.quarantined() as u64;
    gauge(
        &mut text,
        "forkpoint_blob_quarantined",
        "Damaged copies kept.",
        &one(quarantined),
    );
    if let Ok(free) = inner.local.free_bytes() {
        gauge(
            &mut text,
            "forkpoint_blob_local_free_bytes",
            "Bytes free on the disk.",
            &one(free),
        );
    }
    text
}
