//! A cluster's folder on local disk, which can be away: a file system that is not mounted leaves an empty folder.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Provider;

use super::super::layout::StorePath;
use super::HaStore;

impl HaStore {
    /// On local disk whoever writes a file makes the folders above it: below a mount point whose file system went,
    /// say. Nothing is written unless what the first start made is there. One system call, elsewhere nothing.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the folder is gone.
    pub(crate) async fn still_there(&self) -> Result<()> {
        if self.folder.provider() != Provider::Local {
            return Ok(());
        }
        match self.stores.find(&self.at(&StorePath::Format)?).await? {
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                "the folder of the HA store is gone, and nothing was written",
            )
            .during("write")
            .at(&self.folder)
            .hint("mount it or put it back, then repeat the call; the server need not be started again")),
        }
    }

    /// The names of the cluster's folder, as it was given and with links followed; none unless it is on local disk.
    /// Some system calls.
    ///
    /// # Errors
    ///
    /// As [`Stores::real`](crate::store::Stores::real).
    pub(crate) async fn names_on_disk(&self) -> Result<BTreeSet<String>> {
        if self.folder.provider() != Provider::Local {
            return Ok(BTreeSet::new());
        }
        let real = self.stores.real(&self.folder).await?;
        Ok([real.to_string(), self.folder.to_string()].into())
    }

    /// For the start of a server that has used this folder before, from the local directory `data`: a new cluster in
    /// what may be an empty mount point would forget everything.
    ///
    /// # Errors
    ///
    /// `Refused` unless what the first start made is there.
    pub(crate) async fn is_back(&self, data: &Path) -> Result<()> {
        let format = self.at(&StorePath::Format)?;
        if self.stores.find(&format).await?.is_some() {
            return Ok(());
        }
        let data = data.display();
        Err(Error::refused(format!(
            "the HA store that was used with {data} is not there: it has no {}",
            StorePath::Format
        ))
        .during("start")
        .at(&self.folder)
        .hint(format!(
            "mount it or put it back; to begin a new, empty one remove {data}/{} first",
            super::super::layout::LocalPath::HaFolders
        )))
    }
}
