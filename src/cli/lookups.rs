//! Where the files of a snapshot really are: shared by the verbs that read one.

use crate::error::{ErrorKind, Result};
use crate::fork::{ForkRequest, MovedFrom, understand, understand_both};
use crate::progress::Progress;
use crate::snapshot::{CommitObject, Snapshot};
use crate::store::{Location, Stores};
use crate::verify::ReadSnapshot;

use super::location;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Lookups {
    /// The snapshot was copied here by another tool: look up references below this old place
    /// below the snapshot's real one. OLD alone: the new place is found among the folders above
    /// the snapshot. With `verify --against`: whichever of the two was copied so.
    #[arg(long, value_name = "OLD[=NEW]")]
    moved_from: Vec<String>,
    /// A folder, usually a native savepoint, that holds files which relative references of this
    /// snapshot do not find in its own folder.
    #[arg(long, value_name = "FOLDER")]
    look_in: Vec<String>,
}

/// What was read, or that it could not be for want of access: then it is not known what it says, as for the verbs that
/// read all metadata below a root. A bucket that gives no access at all is named as such.
pub(super) async fn readable<T>(stores: &Stores, at: &Location, read: Result<T>) -> Result<T> {
    match read {
        Err(e) if e.kind() == ErrorKind::Denied && stores.check_bucket(at).await.is_ok() => Err(e
            .with_kind(ErrorKind::Incomplete)
            .hint("give read access to it and ask again; it may be intact")),
        other => other,
    }
}

impl Lookups {
    pub(super) fn is_empty(&self) -> bool {
        self.moved_from.is_empty() && self.look_in.is_empty()
    }

    pub(super) fn add_to(&self, request: &mut ForkRequest) -> Result<()> {
        request.moved_from = self
            .moved_from
            .iter()
            .map(|t| MovedFrom::parse(t))
            .collect::<Result<_>>()?;
        request.look_in = self
            .look_in
            .iter()
            .map(|t| location::parse(t))
            .collect::<Result<_>>()?;
        Ok(())
    }

    /// A fork or copy, and what it was made from, as these rules understand them.
    pub(super) async fn both(
        &self,
        stores: &Stores,
        copy: CommitObject,
        original: CommitObject,
        progress: &dyn Progress,
    ) -> Result<(ReadSnapshot, ReadSnapshot)> {
        let mut request = ForkRequest::new(original.directory.clone(), copy.directory.clone());
        self.add_to(&mut request)?;
        understand_both(stores, copy, original, &request, progress).await
    }

    /// The snapshot of `commit` as these rules understand it.
    pub(super) async fn snapshot(
        &self,
        stores: &Stores,
        commit: &CommitObject,
        progress: &dyn Progress,
    ) -> Result<Snapshot> {
        if self.is_empty() {
            return commit.snapshot();
        }
        let mut request = ForkRequest::new(commit.directory.clone(), commit.directory.clone());
        self.add_to(&mut request)?;
        Ok(understand(stores, commit, &request, progress).await?.0)
    }
}
