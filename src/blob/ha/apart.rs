//! An HA store and a directory of ours must not lie in each other: what one of them takes for its own would be
//! the other's.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::store::{Location, Provider, Stores, blocking};

use super::super::local::io_error;

/// Where a path leads, as the kernel would go: links are followed and `..` is what is above, as far as the path
/// exists; the rest is taken as it is.
fn leads_to(path: &Path) -> std::io::Result<PathBuf> {
    let mut at = match path.is_absolute() {
        true => PathBuf::new(),
        false => std::env::current_dir()?,
    };
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                at.pop();
            }
            part => {
                at.push(part);
                at = std::fs::canonicalize(&at).unwrap_or(at);
            }
        }
    }
    Ok(at)
}

/// Fails if `directory` lies in the HA store at `url`, or the other way round, by whatever names. Some system
/// calls, no request.
///
/// # Errors
///
/// `Invalid`, with both places.
pub(crate) async fn apart(stores: &Stores, url: &Location, directory: &Path) -> Result<()> {
    if url.provider() != Provider::Local {
        return Ok(());
    }
    let Some(ha) = stores.real(url).await?.local_path() else {
        return Ok(());
    };
    let path = directory.to_path_buf();
    let ours = blocking(move || leads_to(&path).map_err(|e| io_error(e, "look at", &path))).await?;
    let how = match (ha.starts_with(&ours), ours.starts_with(&ha)) {
        (true, true) => "is the same folder as",
        (true, false) => "lies inside",
        (false, true) => "holds",
        (false, false) => return Ok(()),
    };
    Err(Error::invalid(format!(
        "the HA store {how} the local directory {}",
        directory.display()
    ))
    .during("open")
    .at(url)
    .hint("put them side by side: nothing else may live in either of them"))
}

/// Fails if `directory` lies in the folder of a cluster, or beside one in an HA store. Some system calls, no request.
///
/// For whoever does not know where HA stores are: a cluster's folder is known by what every server writes into it.
///
/// # Errors
///
/// `Invalid`, with the cluster's folder.
pub(crate) async fn outside_of_stores(directory: &Path) -> Result<()> {
    let path = directory.to_path_buf();
    let found = blocking(move || {
        let at = leads_to(&path).map_err(|e| io_error(e, "look at", &path))?;
        Ok(at.ancestors().find_map(cluster_at))
    })
    .await?;
    match found {
        None => Ok(()),
        Some(cluster) => Err(Error::invalid(format!(
            "the directory lies in an HA store: {} is the folder of a cluster",
            cluster.display()
        ))
        .during("open")
        .at(directory.display())
        .hint("name another one: nothing else may live in an HA store")),
    }
}

/// The folder of a cluster that `folder` is, or that lies in it.
fn cluster_at(folder: &Path) -> Option<PathBuf> {
    let is_cluster = |at: &Path| at.join("format.json").is_file() && at.join("epoch").is_dir();
    if is_cluster(folder) {
        return Some(folder.to_path_buf());
    }
    let inside = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()));
    inside.into_iter().find(|at| is_cluster(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;

    #[tokio::test]
    async fn places_in_each_other_are_found_by_whatever_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("real/deep")).unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        let stores = Stores::new(Options::default());
        for (ha, directory, fits) in [
            ("ha", "data", true),
            ("data-2", "data", true),
            ("data/ha", "data", false),
            ("data", "data/x", false),
            ("data", "data", false),
            ("real/ha", "link", false),
            ("link/ha", "real", false),
            ("link", "real/not/yet/there", false),
            // What is above a link's target, not above the link.
            ("real", "link/../real/data", false),
            ("ha", "link/deep/../../ha/data", false),
            ("ha", "link/deep/../ha/data", true),
            ("ha", "none/../ha", false),
        ] {
            let url = format!("file://{}", at(ha).display());
            let url = Location::parse(&url).unwrap();
            let found = apart(&stores, &url, &at(directory)).await;
            assert_eq!(found.is_ok(), fits, "{ha} {directory}: {found:?}");
        }
        let bucket = Location::parse("s3://bucket/data").unwrap();
        assert!(apart(&stores, &bucket, &at("data")).await.is_ok());
    }
}
