//! What `forkpoint blob` prints: uploads, downloads, listings, references, logs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::blob::client::UploadReport;
use crate::blob::wire::{BlobEntry, BlobList, JobList, WhyAnswer};
use crate::blob::{
    BlobState, Class, Digest, Holder, JobId, JobState, LogEntry, LogIndex, LogName, Moment,
    Outcome, SourceUse, SweepReason,
};
use crate::clock;

use super::text::{count, human_bytes, name, table};

/// An upload as a document; `names` in the order of the uploads.
pub fn blob_put_json(
    job: &JobId,
    names: &[String],
    report: &UploadReport,
    registered: bool,
) -> Value {
    let blobs = names.iter().zip(&report.digests).map(|(name, digest)| {
        json!({
            "name": name,
            "digest": digest,
            "bytes": digest.size,
            "sent": report.sent.contains(digest),
            "held": registered || report.held.contains(digest),
        })
    });
    json!({
        "version": 1,
        "job": job,
        "blobs": blobs.collect::<Vec<_>>(),
        "registered": registered,
        "job_state": report.state,
        "keep_until_unix_ms": report.staged.keep_until,
    })
}

/// An upload for people.
pub fn blob_put_text(
    job: &JobId,
    names: &[String],
    report: &UploadReport,
    registered: bool,
) -> String {
    let rows: Vec<Vec<String>> = names
        .iter()
        .zip(&report.digests)
        .map(|(shown, digest)| {
            let how = match report.sent.contains(digest) {
                _ if digest.is_empty_blob() => "empty",
                true => "sent",
                false => "was there",
            };
            vec![digest.to_string(), how.to_string(), name(shown)]
        })
        .collect();
    let mut text = table(&rows, &[]);
    let empty = report.digests.iter().filter(|d| d.is_empty_blob()).count();
    if empty < report.digests.len() {
        text.push_str(&match registered {
            true => format!("job {job} is registered and holds them\n"),
            false => how_long(job, report),
        });
    } else if registered {
        text.push_str(&format!("job {job} is registered\n"));
    }
    if empty > 0 {
        text.push_str(
            "nothing is stored for an empty file: it is not listed, and can be read at any time\n",
        );
    }
    text
}

/// How long uploads stay that were not registered: a job that is registered already holds only what it was
/// registered with.
fn how_long(job: &JobId, report: &UploadReport) -> String {
    let all: BTreeSet<&Digest> = report.digests.iter().collect();
    let unheld = all
        .iter()
        .filter(|d| !d.is_empty_blob() && !report.held.contains(d))
        .count();
    let (held, until) = (report.held.len(), clock::utc(report.staged.keep_until.0));
    let which = match (held, unheld) {
        (_, 0) => return "they are held already, and stay as long as that is so\n".to_string(),
        (0, _) => "they stay".to_string(),
        (_, 1) => "the one that nobody holds stays".to_string(),
        (_, n) => format!("the {n} that nobody holds stay"),
    };
    let job = match report.state {
        None | Some(JobState::Staging) => {
            format!("the same command with --register registers job {job}, which then holds them")
        }
        Some(JobState::Active) => format!(
            "job {job} is registered, but holds only what it was registered with: \
             the same command with --register adds them"
        ),
        Some(state) => format!(
            "job {job} is known ({}): the same command with --register registers it again, with them",
            job_state(state)
        ),
    };
    format!("{which} until {until}, and longer if somebody holds them by then; {job}\n")
}

/// A download as a document.
pub fn blob_get_json(
    job: &JobId,
    digest: &Digest,
    file: &str,
    verified: bool,
    sources: &[SourceUse],
) -> Value {
    json!({
        "version": 1,
        "job": job,
        "digest": digest,
        "bytes": digest.size,
        "file": file,
        "verified": verified,
        "sources": sources,
    })
}

/// A download for people.
pub fn blob_get_text(digest: &Digest, file: &str, sources: &[SourceUse]) -> String {
    if digest.is_empty_blob() {
        return format!("{}: empty, nothing was fetched\n", name(file));
    }
    let from = sources.iter().find(|s| s.fetched > 0);
    let from = from.map_or("the local file", |s| s.source.as_str());
    let mut text = format!(
        "{}: {}, verified, from {from}\n",
        name(file),
        human_bytes(digest.size)
    );
    for source in sources.iter().filter(|s| s.wrong > 0) {
        text.push_str(&format!(
            "  {} sent something else {}: it was thrown away\n",
            source.source,
            count(source.wrong, "time", "times"),
        ));
    }
    text
}

fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Staging => "staging",
        JobState::Active => "active",
        JobState::Failed => "failed, will restart",
        JobState::Suspended => "suspended",
        JobState::Terminal(Outcome::Finished) => "over: finished",
        JobState::Terminal(Outcome::Cancelled) => "over: cancelled",
        JobState::Terminal(Outcome::Failed) => "over: failed",
    }
}

/// The jobs of a server as a document.
pub fn blob_jobs_json(list: &JobList) -> Value {
    json!({ "version": 1, "now_unix_ms": list.now, "jobs": list.jobs })
}

/// The jobs of a server for people.
pub fn blob_jobs_text(list: &JobList) -> String {
    if list.jobs.is_empty() {
        return "no job\n".to_string();
    }
    let mut rows = vec![
        ["job", "state", "blobs", "bytes", "open uploads"]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(list.jobs.iter().map(|job| {
        vec![
            job.job.to_string(),
            job_state(job.state).to_string(),
            job.blobs.to_string(),
            human_bytes(job.bytes),
            job.sessions.to_string(),
        ]
    }));
    table(&rows, &[2, 3, 4])
}

fn state(state: BlobState) -> &'static str {
    match state {
        BlobState::Staged => "staged",
        BlobState::Referenced => "referenced",
        BlobState::Expiring => "expiring",
        BlobState::Deleting => "deleting",
        BlobState::Lost => "LOST",
    }
}

fn holder(holder: &Holder) -> String {
    match holder {
        Holder::Job => "the job".to_string(),
        Holder::Receiver(who) => format!("receiver {who}"),
        Holder::Lease(id) => format!("lease {id}"),
    }
}

/// A time that is so far from now, by one clock.
fn left(until: Moment, now: Moment) -> String {
    match until.0.checked_sub(now.0) {
        Some(0) | None => "now".to_string(),
        Some(millis) if millis < 120_000 => format!("in {} s", millis.div_ceil(1000)),
        Some(millis) if millis < 7_200_000 => format!("in {} min", millis / 60_000),
        Some(millis) => format!("in {} h", millis / 3_600_000),
    }
}

fn held_by(blob: &BlobEntry, now: Moment) -> String {
    match (&blob.holders[..], blob.keep_until) {
        ([], Some(until)) => format!("nobody; may go {}", left(until, now)),
        ([], None) => "nobody".to_string(),
        ([one], _) => holder(&one.by),
        (more, _) => count(more.len() as u64, "holder", "holders"),
    }
}

/// The blobs of a job as a document.
pub fn blob_ls_json(job: &JobId, list: &BlobList) -> Value {
    json!({
        "version": 1,
        "job": job,
        "state": list.state,
        "now_unix_ms": list.now,
        "blobs": list.blobs,
    })
}

/// The blobs of a job for people.
pub fn blob_ls_text(job: &JobId, list: &BlobList) -> String {
    let mut text = format!(
        "job {job}: {}, {}\n",
        job_state(list.state),
        count(list.blobs.len() as u64, "blob", "blobs")
    );
    let rows: Vec<Vec<String>> = list
        .blobs
        .iter()
        .map(|blob| {
            let class = match blob.class {
                Class::Retained => "retained",
                Class::Recreatable => "re-creatable",
            };
            vec![
                blob.digest.to_string(),
                human_bytes(blob.digest.size),
                class.to_string(),
                state(blob.state).to_string(),
                held_by(blob, list.now),
                blob.name.as_ref().map(name).unwrap_or_default(),
            ]
        })
        .collect();
    text.push_str(&table(&rows, &[1]));
    text
}

/// Why a blob stays or goes, as a document.
pub fn blob_why_json(job: &JobId, answer: &WhyAnswer) -> Value {
    json!({
        "version": 1,
        "job": job,
        "now_unix_ms": answer.now,
        "goes": answer.why.goes(),
        "why": answer.why,
        "blob": answer.blob,
    })
}

fn reason(why: &SweepReason, now: Moment) -> String {
    match why {
        SweepReason::Held { holders } => {
            format!(
                "stays: {}",
                count(*holders as u64, "holder needs it", "holders need it")
            )
        }
        SweepReason::Pinned { readers } => {
            format!(
                "stays: {}",
                count(u64::from(*readers), "reader is on it", "readers are on it")
            )
        }
        SweepReason::Promised => "stays: an open upload session counts on it".to_string(),
        SweepReason::KeptUntil { until } => {
            format!(
                "stays: nobody holds it, but its time has not come; it may go {}",
                left(*until, now)
            )
        }
        SweepReason::Lost => {
            "stays: it is LOST, every copy is damaged, and its holders must be told".to_string()
        }
        SweepReason::DeadlinePassed { .. } => {
            "goes with the next sweep: nobody holds it and its time has passed".to_string()
        }
        SweepReason::JobOver => "goes with the next sweep: its job is over".to_string(),
    }
}

/// Why a blob stays or goes, for people.
pub fn blob_why_text(job: &JobId, answer: &WhyAnswer) -> String {
    let blob = &answer.blob;
    let shown = blob.name.as_ref().map(name).unwrap_or_default();
    let mut text = format!("{} {shown}\n", blob.digest).replace(" \n", "\n");
    text.push_str(&format!(
        "  of job {job}, {}, {}\n",
        human_bytes(blob.digest.size),
        state(blob.state)
    ));
    text.push_str(&format!("  {}\n", reason(&answer.why, answer.now)));
    text.push_str(&holders_text(blob, answer.now));
    if let Some(object) = &blob.object {
        text.push_str(&format!("  object {object}\n"));
    }
    text
}

fn holders_text(blob: &BlobEntry, now: Moment) -> String {
    let mut text = String::new();
    for held in &blob.holders {
        text.push_str(&format!("  held by {}", holder(&held.by)));
        if let Some(end) = held.lease_end {
            text.push_str(&format!(", which ends {}", left(end, now)));
        }
        text.push('\n');
    }
    text
}

/// The references to a blob as a document.
pub fn blob_refs_json(job: &JobId, answer: &WhyAnswer) -> Value {
    json!({
        "version": 1,
        "job": job,
        "digest": answer.blob.digest,
        "count": answer.blob.holders.len(),
        "holders": answer.blob.holders,
        "now_unix_ms": answer.now,
    })
}

/// The references to a blob for people.
pub fn blob_refs_text(answer: &WhyAnswer) -> String {
    let n = answer.blob.holders.len() as u64;
    let mut text = format!(
        "{}: {}\n",
        answer.blob.digest,
        count(n, "reference", "references")
    );
    text.push_str(&holders_text(&answer.blob, answer.now));
    text
}

/// What holds for the empty blob of any job.
const EMPTY: &str =
    "the empty blob: nothing is stored, so nobody need hold it, and it is always there";

/// The references to the empty blob as a document.
pub fn blob_refs_empty_json(job: &JobId) -> Value {
    json!({
        "version": 1,
        "job": job,
        "digest": Digest::of(b""),
        "count": 0,
        "holders": [],
        "always_there": true,
    })
}

/// The references to the empty blob for people.
pub fn blob_refs_empty_text() -> String {
    format!(
        "{}: {}\n  {EMPTY}\n",
        Digest::of(b""),
        count(0, "reference", "references")
    )
}

/// Why the empty blob stays, as a document.
pub fn blob_why_empty_json(job: &JobId) -> Value {
    json!({
        "version": 1,
        "job": job,
        "digest": Digest::of(b""),
        "goes": false,
        "why": { "reason": "always-there" },
    })
}

/// Why the empty blob stays, for people.
pub fn blob_why_empty_text() -> String {
    format!("{}\n  stays: {EMPTY}\n", Digest::of(b""))
}

/// The end of a job as a document; `list` is what it had.
pub fn blob_finish_json(
    job: &JobId,
    outcome: Outcome,
    list: Option<&BlobList>,
    done: bool,
) -> Value {
    json!({
        "version": 1,
        "job": job,
        "outcome": outcome,
        "done": done,
        "blobs": list.map_or(0, |l| l.blobs.len()),
        "bytes": list.map_or(0, bytes_of),
    })
}

fn bytes_of(list: &BlobList) -> u64 {
    let sizes = list.blobs.iter().map(|b| b.digest.size);
    sizes.fold(0, u64::saturating_add)
}

/// The end of a job for people.
pub fn blob_finish_text(job: &JobId, list: Option<&BlobList>, done: bool) -> String {
    let blobs = list.map_or(0, |l| l.blobs.len() as u64);
    let what = format!(
        "{}, {}",
        count(blobs, "blob", "blobs"),
        human_bytes(list.map_or(0, bytes_of))
    );
    match done {
        true => format!("job {job} is over; its blobs are gone or going ({what})\n"),
        false => format!("job {job} would be over and lose {what}; nothing was done\n"),
    }
}

/// A publication of a log as a document.
pub fn blob_log_json(job: &JobId, log: &LogName, index: Option<&LogIndex>) -> Value {
    json!({
        "version": 1,
        "job": job,
        "node": log.node,
        "file": log.file(),
        "there": index.is_some(),
        "index": index,
    })
}

/// A publication of a log for people.
pub fn blob_log_text(log: &LogName, index: Option<&LogIndex>) -> String {
    match index {
        None => format!("{}: there is no such log\n", name(log)),
        Some(index) => format!(
            "{}: {} in {}, incarnation {}, publication {}\n",
            name(log),
            human_bytes(index.length()),
            count(index.parts.len() as u64, "part", "parts"),
            index.incarnation,
            index.revision,
        ),
    }
}

/// The logs of a job as a document.
pub fn blob_logs_json(job: &JobId, logs: &[LogEntry]) -> Value {
    json!({ "version": 1, "job": job, "logs": logs })
}

/// The logs of a job for people.
pub fn blob_logs_text(logs: &[LogEntry]) -> String {
    if logs.is_empty() {
        return "no log\n".to_string();
    }
    let rows: Vec<Vec<String>> = logs
        .iter()
        .map(|log| {
            let version = format!(
                "incarnation {}, publication {}",
                log.incarnation, log.revision
            );
            vec![format!("{}/{}", log.node, name(&log.file)), version]
        })
        .collect();
    table(&rows, &[])
}
