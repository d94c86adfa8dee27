//! Finds the complete snapshots of a job. I/O.

use futures::TryStreamExt;

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::native::{MANIFEST_LIMIT_BYTES, Manifest, ManifestKind};
use crate::store::{Location, Sha256Sum, Stores};

use super::names;
use super::restore::OTHER_SNAPSHOT;

/// A complete snapshot, and what its manifest says.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundSnapshot {
    /// Its folder.
    pub directory: Location,
    /// What it says.
    pub manifest: Manifest,
    /// The digest of the manifest.
    pub sha256: Sha256Sum,
}

/// What there is in the folder of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Catalog {
    /// Checkpoints by number, sorted: their folders.
    pub(super) checkpoints: Vec<(i64, Location)>,
    /// Savepoints by number: their folders.
    pub(super) savepoints: Vec<(i64, Location)>,
    /// The highest number of which there is a note that it was committed.
    pub(super) noted: i64,
    /// There are lists of uploads.
    pub(super) has_uploads: bool,
}

/// Lists the folder of a job. One request per 1,000 objects.
pub(super) async fn list(stores: &Stores, home: &Location) -> Result<Catalog> {
    let mut catalog = Catalog::default();
    let mut listing = stores.list_stream(home)?;
    let uploads = names::uploads(home)?;
    let notes = names::commits(home)?;
    loop {
        let at = match listing.try_next().await {
            Ok(Some((at, _))) => at,
            Ok(None) => break,
            // On local disk nothing was written yet.
            Err(e) if e.kind() == ErrorKind::NotFound && catalog.is_empty() => {
                stores.check_bucket(home).await?;
                break;
            }
            Err(e) => return Err(e),
        };
        if let Some(number) = names::checkpoint_number(home, &at) {
            catalog.checkpoints.extend(at.parent().map(|d| (number, d)));
        } else if let Some(number) = names::savepoint_number(home, &at) {
            catalog.savepoints.extend(at.parent().map(|d| (number, d)));
        } else if let Some((number, _)) = names::of_commit_note(&at)
            && notes.contains(&at)
        {
            catalog.noted = catalog.noted.max(number);
        } else if uploads.contains(&at) {
            catalog.has_uploads = true;
        }
    }
    catalog.checkpoints.sort_by_key(|(number, _)| *number);
    let newest = catalog.checkpoints.last().map_or(0, |(number, _)| *number);
    if catalog.noted > newest {
        // Removed by somebody, or committed while its folder had been listed already.
        let directory = home.join(&format!("chk-{}", catalog.noted))?;
        let commit = names::commit_object(&directory)?;
        if stores.find(&commit).await?.is_some() {
            catalog.checkpoints.push((catalog.noted, directory));
        }
    }
    Ok(catalog)
}

impl Catalog {
    fn is_empty(&self) -> bool {
        self.checkpoints.is_empty() && self.savepoints.is_empty() && !self.has_uploads
    }

    /// The highest number of a checkpoint, also of one that was removed; 0 without any.
    pub(super) fn highest(&self) -> i64 {
        let newest = self.checkpoints.last().map_or(0, |(number, _)| *number);
        newest.max(self.noted)
    }

    /// The newest snapshot: by number, a checkpoint before a savepoint that was taken before it. Reads the
    /// newest ones by name alone: what is damaged of older ones means nothing.
    ///
    /// # Errors
    ///
    /// `Conflict` if the newest checkpoint has gone since it was listed: there is a newer one then.
    pub(super) async fn newest(&self, stores: &Stores) -> Result<Option<FoundSnapshot>> {
        let mut newest: Option<FoundSnapshot> = None;
        let mut places: Vec<&(i64, Location)> = self.checkpoints.last().into_iter().collect();
        let checkpoint = self.checkpoints.last().map(|(_, directory)| directory);
        places.extend(&self.savepoints);
        places.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        for (number, directory) in places {
            if newest.as_ref().is_some_and(|n| n.manifest.number > *number) {
                break;
            }
            let found = match read(stores, directory).await {
                Err(e) if e.kind() == ErrorKind::NotFound && checkpoint == Some(directory) => {
                    return Err(e.with_kind(ErrorKind::Conflict));
                }
                // Its owner has removed it.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                found => found.map_err(|e| e.hint(OTHER_SNAPSHOT))?,
            };
            let key = |s: &FoundSnapshot| (s.manifest.number, s.manifest.created_unix_ms);
            if newest.as_ref().is_none_or(|best| key(best) < key(&found)) {
                newest = Some(found);
            }
        }
        Ok(newest)
    }
}

/// Reads one manifest. One request.
pub(super) async fn read(stores: &Stores, directory: &Location) -> Result<FoundSnapshot> {
    let at = names::commit_object(directory)?;
    let bytes = stores.read(&at, MANIFEST_LIMIT_BYTES).await?;
    let manifest = Manifest::decode(&bytes).map_err(|e| e.during("read").at(&at))?;
    Ok(FoundSnapshot {
        directory: directory.clone(),
        sha256: Sha256Sum::of(&bytes),
        manifest,
    })
}

/// The complete snapshots in the folder of a job, oldest first; savepoints come with the checkpoints of
/// their number. One request per 1,000 objects, and one per snapshot.
///
/// # Errors
///
/// `Corrupt` for a manifest that is damaged.
pub async fn find_snapshots(stores: &Stores, home: &Location) -> Result<Vec<FoundSnapshot>> {
    let catalog = list(stores, home).await?;
    let mut found = Vec::new();
    for (_, directory) in catalog.checkpoints.iter().chain(&catalog.savepoints) {
        match read(stores, directory).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            one => found.push(one?),
        }
    }
    found.sort_by_key(|s| {
        (
            s.manifest.number,
            s.manifest.kind == ManifestKind::Checkpoint,
        )
    });
    Ok(found)
}

/// Where there is no snapshot to start from.
pub(super) fn nothing_there(at: &Location) -> Error {
    Error::new(ErrorKind::NotFound, "no complete snapshot is here")
        .during("restore")
        .at(at)
        .hint("name the folder of a job, or of a snapshot with a `_forkpoint.json`")
}
