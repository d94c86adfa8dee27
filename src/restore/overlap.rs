//! A fork must not lie where it goes when the original goes, nor write into the original's folders.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::snapshot::Snapshot;
use crate::store::{Location, OWN_FOLDER, Stores};

use super::destination::Layout;

/// Folders that count: as they are named, or as they really are (symbolic links followed, accounts
/// written out).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ground {
    /// The folder of the snapshot itself.
    pub snapshot: Option<Location>,
    /// The other folders.
    pub folders: BTreeSet<Location>,
}

impl Ground {
    /// The folders of a snapshot's objects, and those that go as a whole with it, as they are named.
    pub fn of_source(snapshot: &Snapshot) -> Ground {
        // Objects are sorted, so that neighbours mostly have one folder.
        let mut last: Option<Location> = None;
        let holders = snapshot.objects.iter().filter_map(|object| {
            let rest = last
                .as_ref()
                .and_then(|folder| folder.strip(&object.location));
            if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/')) {
                return None;
            }
            last = object.location.parent();
            last.clone()
        });
        let whole = snapshot.folders.iter().map(|f| f.location.clone());
        Ground {
            snapshot: Some(snapshot.directory.clone()),
            folders: holders.chain(whole).collect(),
        }
    }

    /// The folders that a fork would write to, as they are named.
    ///
    /// # Errors
    ///
    /// None for a well-formed root.
    pub fn of_fork(layout: &Layout) -> Result<Ground> {
        let root = layout.root();
        let folders = [
            root.clone(),
            root.join("shared")?,
            root.join("taskowned")?,
            root.join(OWN_FOLDER)?,
            layout.snapshot().clone(),
        ];
        Ok(Ground {
            snapshot: Some(layout.snapshot().clone()),
            folders: folders.into_iter().collect(),
        })
    }

    /// The same folders as they really are.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::real`].
    pub async fn real(self, stores: &Stores) -> Result<Ground> {
        let mut real = Ground::default();
        for folder in &self.folders {
            real.folders.insert(stores.real(folder).await?);
        }
        if let Some(snapshot) = &self.snapshot {
            real.snapshot = Some(stores.real(snapshot).await?);
        }
        Ok(real)
    }
}

/// Refuses a fork whose folders lie in those of its source, or in the folder of a job whose files it
/// needs. Pure.
///
/// # Errors
///
/// `Refused`, with the folder that is in the way.
pub fn refuse_overlap(source: &Ground, fork: &Ground) -> Result<()> {
    let refuse = |why: String| {
        Err(Error::refused(why)
            .hint("choose a destination outside the job's folder, such as a sibling of it"))
    };
    if source.snapshot == fork.snapshot {
        return refuse("the fork would lie on the snapshot itself".into());
    }
    // The root of a fork may lie above its source: it holds a folder for each, and nobody removes it as a whole for
    // being the fork's. But what lies in the folders below it is the fork's, and goes with it.
    let is_root = |target: &Location| {
        let mut others = fork.folders.iter();
        others.any(|other| other != target && target.contains(other))
    };
    let below = fork.folders.iter().filter(|target| !is_root(target));
    for target in below.chain(&fork.snapshot) {
        let needed = source.folders.iter().chain(&source.snapshot);
        if let Some(folder) = needed
            .into_iter()
            .find(|folder| *folder != target && target.contains(folder))
        {
            return refuse(format!(
                "{folder}, which holds files of the snapshot, lies inside {target}, which would be a folder of the fork: \
                 whoever removes that would remove the original"
            ));
        }
    }
    for target in &fork.folders {
        if let Some(snapshot) = source.snapshot.iter().find(|s| s.contains(target)) {
            return refuse(format!("{target} lies inside the snapshot {snapshot}"));
        }
        for folder in source.folders.iter().chain(&source.snapshot) {
            // The root of a bucket holds files of many.
            if !folder.key().is_empty() && folder.contains(target) {
                return refuse(format!(
                    "{target} lies inside {folder}, which holds files of the snapshot"
                ));
            }
            if let Some(job) = job_folders(folder).find(|job| job.contains(target)) {
                return refuse(format!(
                    "{target} lies inside {job}, the folder of a job whose files the snapshot needs: whoever \
                     removes that folder would remove the fork"
                ));
            }
        }
    }
    Ok(())
}

/// The folders above, and this one, that are named by a job id: 32 hex digits. Flink names a job's
/// folder so, and whoever cleans up removes it whole.
fn job_folders(at: &Location) -> impl Iterator<Item = Location> {
    std::iter::successors(Some(at.clone()), Location::parent)
        .filter(|l| l.name().len() == 32 && l.name().bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ground(snapshot: &str, folders: &[&str]) -> Ground {
        let at = |text: &&str| Location::parse(text).unwrap();
        Ground {
            snapshot: Some(at(&snapshot)),
            folders: folders.iter().map(at).collect(),
        }
    }

    #[test]
    fn a_fork_must_not_lie_in_what_it_needs() {
        const A: &str = "s3://b/00000000000000000000000000000a";
        let (a, b) = (format!("{A}aa"), format!("{A}bb"));
        let source = ground(
            &format!("{b}/chk-5"),
            &[&format!("{a}/shared"), &format!("{b}/shared")],
        );
        let fork =
            |root: &str| ground(&format!("{root}/chk-5"), &[root, &format!("{root}/shared")]);
        for root in [
            &a,
            &b,
            &format!("{a}/sub"),
            &format!("{b}/chk-5/x"),
            &format!("{b}/shared"),
        ] {
            assert!(refuse_overlap(&source, &fork(root)).is_err(), "{root}");
        }
        // Above its source: a folder for each.
        for root in ["s3://b/fork", "s3://c", "s3://b"] {
            assert!(refuse_overlap(&source, &fork(root)).is_ok(), "{root}");
        }
        // A folder of the fork would hold the source.
        for job in ["s3://b/x/shared/copy", "s3://b/x/chk-5/copy"] {
            let source = ground(&format!("{job}/chk-5"), &[&format!("{job}/shared")]);
            let e = refuse_overlap(&source, &fork("s3://b/x")).unwrap_err();
            assert!(e.to_string().contains("remove the original"), "{e}");
        }
    }
}
