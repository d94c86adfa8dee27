//! A comparison of every copy from outside, beside a server that runs: changes nothing and takes nothing over.

use std::collections::BTreeMap;
use std::io::ErrorKind as ErrorOf;
use std::path::{Path, PathBuf};
use std::pin::pin;

use futures::TryStreamExt;
use serde::Serialize;

use crate::error::Result;
use crate::store::blocking;

use super::super::key::{BlobKey, Digest};
use super::super::layout::LocalPath;
use super::super::local::io_error;
use super::super::recovery::RefusedJob;
use super::super::server::{Finding, Place, ScrubReport};
use super::{HaStore, MANIFESTS_READ_AHEAD, Object, readable};

/// What all copies are like.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The newest epoch.
    pub epoch: u64,
    /// What was compared and found; nothing in it is repaired.
    pub scrub: ScrubReport,
    /// Jobs whose newest manifest cannot be read: their objects were not compared.
    pub refused: Vec<RefusedJob>,
}

/// Reads every retained object that a newest manifest names, and every blob in the local `directory`. Costs two
/// listings, a read per job, and one request per 8 MiB of objects.
///
/// # Errors
///
/// `NotFound` if no server ever owned the cluster; what store and file system answer.
pub async fn compare(ha: &HaStore, directory: &Path) -> Result<Comparison> {
    let epoch = ha.owned_epoch().await?;
    let mut local = BTreeMap::new();
    let mut report = ScrubReport::default();
    for (key, path) in local_blobs(directory).await? {
        let Some(digest) = digest_of(path).await? else {
            continue;
        };
        report.copies += 1;
        report.bytes = report.bytes.saturating_add(digest.size);
        let good = digest == key.digest;
        if !good {
            report.findings.push(Finding {
                key: key.clone(),
                place: Place::Local,
                what: format!("its bytes are those of {digest}"),
                repaired: false,
            });
        }
        local.insert(key, good);
    }
    let listed = ha.everything().await?;
    let mut refused = Vec::new();
    let jobs = HaStore::jobs(&listed);
    let mut manifests = pin!(ha.newest_manifests(&listed, jobs, MANIFESTS_READ_AHEAD));
    while let Some((job, manifest)) = manifests.try_next().await? {
        let Some(manifest) = readable(&job, manifest, &mut refused) else {
            continue;
        };
        if manifest.content.state.is_terminal() {
            continue;
        }
        for entry in &manifest.content.entries {
            let key = BlobKey {
                job: job.clone(),
                digest: entry.digest,
            };
            let object = ha.examine(&job, &entry.object, |_| async {}).await?;
            if object != Object::Missing {
                report.copies += 1;
                report.bytes = report.bytes.saturating_add(entry.digest.size);
            }
            let wrong = match object {
                Object::Good => None,
                Object::Missing => Some("it is missing".to_string()),
                Object::Damaged(what) => Some(what),
            };
            if wrong.is_some() && local.get(&key) != Some(&true) {
                report.lost.push(key.clone());
            }
            report.findings.extend(wrong.map(|what| Finding {
                key,
                place: Place::Ha,
                what,
                repaired: false,
            }));
        }
    }
    Ok(Comparison {
        epoch,
        scrub: report,
        refused,
    })
}

async fn local_blobs(directory: &Path) -> Result<Vec<(BlobKey, PathBuf)>> {
    let directory = directory.to_path_buf();
    blocking(move || {
        let mut found = Vec::new();
        let mut folders = vec![directory.join("jobs")];
        while let Some(folder) = folders.pop() {
            let fail = |e| io_error(e, "list", &folder);
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorOf::NotFound => continue,
                Err(e) => return Err(fail(e)),
            };
            for entry in entries {
                let entry = entry.map_err(fail)?;
                let path = entry.path();
                if entry.file_type().map_err(fail)?.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&directory).ok().and_then(Path::to_str);
                if let Some(Ok(LocalPath::Blob(job, digest))) = name.map(LocalPath::parse) {
                    found.push((BlobKey { job, digest }, path));
                }
            }
        }
        found.sort();
        Ok(found)
    })
    .await
}

/// What is in a file; none if it went meanwhile.
async fn digest_of(path: PathBuf) -> Result<Option<Digest>> {
    blocking(move || {
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorOf::NotFound => return Ok(None),
            Err(e) => return Err(io_error(e, "read", &path)),
        };
        let digest = Digest::read(file).map_err(|e| io_error(e, "read", &path))?;
        Ok(Some(digest))
    })
    .await
}
