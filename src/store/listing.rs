//! Many objects at once: what lies below a folder, and which of many objects are there.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt, TryStreamExt};

use crate::error::{ErrorKind, Result};

use super::location::{Location, Provider};
use super::open::Stores;
use super::stat::Stat;
use super::{errors, local};

/// Looks at single objects under way at once.
const LOOKS_IN_FLIGHT: usize = 32;
/// From this many objects of one folder on, listing the folder is cheaper than a look at each.
const LISTING_PAYS_FROM: usize = 24;
/// A listing that meets this many strangers for each object looked for is given up.
const STRANGERS_PER_OBJECT: usize = 20;

impl Stores {
    /// All objects below `folder`, in no particular order. One request per 1,000 objects.
    ///
    /// # Errors
    ///
    /// `Unsupported` if one of the keys cannot be addressed by the store client: the listing
    /// would then be incomplete.
    pub async fn list(&self, folder: &Location) -> Result<Vec<(Location, Stat)>> {
        let store = self.open(folder)?;
        let Some(store) = store.objects() else {
            let folder = folder.clone();
            return super::blocking(move || local::list(&folder)).await;
        };
        let prefix = (!folder.key().is_empty())
            .then(|| folder.object_path())
            .transpose()?;
        store
            .list(prefix.as_ref())
            .map_ok(|meta| (folder.with_key(meta.location.as_ref()), Stat::from(meta)))
            .map_err(|e| errors::from_client(e, "list", folder))
            .try_collect()
            .await
    }

    /// Size and tag of each of `wanted`; `None` for one that is not there.
    ///
    /// Lists a folder where many of its objects are wanted, and looks at single objects
    /// elsewhere, and wherever a listing does not show an object: at most one request per object.
    ///
    /// # Errors
    ///
    /// The first error other than a missing object.
    pub async fn stat_all(&self, wanted: &[Location]) -> Result<HashMap<Location, Option<Stat>>> {
        let mut by_folder: BTreeMap<Option<Location>, Vec<&Location>> = BTreeMap::new();
        for at in wanted {
            by_folder.entry(at.parent()).or_default().push(at);
        }
        let mut found: HashMap<Location, Option<Stat>> = HashMap::with_capacity(wanted.len());
        let mut single: Vec<Location> = Vec::new();
        for (folder, objects) in by_folder {
            if let Some(folder) = &folder
                && objects.len() >= LISTING_PAYS_FROM
                && can_list_instead(folder.provider())
            {
                self.list_into(folder, &objects, &mut found).await?;
            }
            single.extend(
                objects
                    .into_iter()
                    .filter(|at| !found.contains_key(*at))
                    .cloned(),
            );
        }
        let looks: Vec<(Location, Option<Stat>)> = futures::stream::iter(single)
            .map(|at| async move {
                let stat = self.find(&at).await?;
                Ok::<_, crate::Error>((at, stat))
            })
            .buffer_unordered(LOOKS_IN_FLIGHT)
            .try_collect()
            .await?;
        found.extend(looks);
        Ok(found)
    }

    /// Adds those of `objects` that a listing of `folder` shows. A listing that fails on an odd
    /// key, or that shows mostly strangers, just adds less.
    async fn list_into(
        &self,
        folder: &Location,
        objects: &[&Location],
        found: &mut HashMap<Location, Option<Stat>>,
    ) -> Result<()> {
        let store = self.open(folder)?;
        let Some(store) = store.objects() else {
            return Ok(());
        };
        let looked_for: HashMap<&str, &Location> =
            objects.iter().map(|at| (at.key(), *at)).collect();
        let mut left = objects.len();
        let mut strangers = 0;
        let mut listing = store.list(Some(&folder.object_path()?));
        while let Some(next) = listing.next().await {
            let meta = match next {
                Ok(meta) => meta,
                Err(object_store::Error::InvalidPath { .. }) => return Ok(()),
                Err(e) => {
                    let e = errors::from_client(e, "list", folder);
                    // No right to list is no reason to fail: the objects may be readable.
                    return if e.kind() == ErrorKind::Denied {
                        Ok(())
                    } else {
                        Err(e)
                    };
                }
            };
            match looked_for.get(meta.location.as_ref()) {
                Some(at) => {
                    if found
                        .insert((*at).clone(), Some(Stat::from(meta)))
                        .is_none()
                    {
                        left -= 1;
                    }
                    if left == 0 {
                        return Ok(());
                    }
                }
                None => {
                    strangers += 1;
                    if strangers > STRANGERS_PER_OBJECT * objects.len() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Google's listing shows no generations, which its copies are pinned to; a local folder is
/// looked at file by file at the same cost.
fn can_list_instead(provider: Provider) -> bool {
    !matches!(provider, Provider::Gcs | Provider::Local)
}
