//! Many objects at once: what lies below a folder, and which of many objects are there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};

use super::location::{Location, Provider};
use super::open::{Backend, Store, Stores};
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
    /// As [`Stores::list_stream`].
    pub async fn list(&self, folder: &Location) -> Result<Vec<(Location, Stat)>> {
        self.list_stream(folder)?.try_collect().await
    }

    /// All objects below `folder` as they come, in no particular order, in bounded memory. One
    /// request per 1,000 objects. Empty objects whose keys end in a slash, which some tools make to
    /// mark folders, are left out.
    ///
    /// # Errors
    ///
    /// `Unsupported`, except on S3, if one of the keys cannot be addressed by the store client: the
    /// listing would then be incomplete.
    pub fn list_stream(
        &self,
        folder: &Location,
    ) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        self.list_with(folder, false)
    }

    /// As [`Stores::list_stream`], and on S3 the empty objects that mark folders too: everything
    /// that there is, keys as the service says them. What a deletion must know.
    ///
    /// # Errors
    ///
    /// As [`Stores::list_stream`].
    pub fn inventory_stream(
        &self,
        folder: &Location,
    ) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        self.list_with(folder, true)
    }

    /// As [`Stores::list_stream`], but what cannot be listed on local disk (a folder that may not be read, a link to a
    /// folder, a name that is not UTF-8) goes to `meet`, and the rest is listed. Never what a deletion goes by.
    ///
    /// # Errors
    ///
    /// As [`Stores::list_stream`].
    pub fn list_what_can_be(
        &self,
        folder: &Location,
        mut meet: impl FnMut(Location, Error) + Send + 'static,
    ) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        if folder.provider() != Provider::Local {
            return self.list_stream(folder);
        }
        let folder = folder.clone();
        let listed = async move {
            let found = super::blocking(move || {
                local::list_past(&folder, &mut |at, e| {
                    meet(at, e);
                    Ok(())
                })
            });
            Ok(futures::stream::iter(found.await?.into_iter().map(Ok)))
        };
        Ok(futures::stream::once(listed).try_flatten().boxed())
    }

    fn list_with(
        &self,
        folder: &Location,
        markers: bool,
    ) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        let store = self.open(folder)?;
        let folder = folder.clone();
        if let Backend::S3(_) = &store.backend {
            return Ok(self.list_s3(store, folder, markers));
        }
        let Some(objects) = store.objects() else {
            let listed = async move {
                let found = super::blocking(move || local::list(&folder)).await?;
                Ok(futures::stream::iter(found.into_iter().map(Ok)))
            };
            return Ok(futures::stream::once(listed).try_flatten().boxed());
        };
        let prefix = (!folder.key().is_empty())
            .then(|| folder.object_path())
            .transpose()?;
        Ok(objects
            .list(prefix.as_ref())
            .map(move |next| match next {
                Ok(meta) => Ok((folder.with_key(meta.location.as_ref()), Stat::from(meta))),
                Err(e) => Err(errors::from_client(e, "list", &folder)),
            })
            .boxed())
    }

    fn list_s3(
        &self,
        store: Arc<Store>,
        folder: Location,
        markers: bool,
    ) -> BoxStream<'static, Result<(Location, Stat)>> {
        let prefix = match folder.key() {
            "" => String::new(),
            key => format!("{key}/"),
        };
        // The next page's token; none yet on the first one.
        let begin = (self.clone(), Some(None::<String>));
        futures::stream::try_unfold(begin, move |(stores, next)| {
            let (store, folder, prefix) = (Arc::clone(&store), folder.clone(), prefix.clone());
            async move {
                let Some(token) = next else { return Ok(None) };
                let Backend::S3(bucket) = &store.backend else {
                    return Ok(None);
                };
                let page = bucket
                    .page(stores.wire(&store)?, &folder, &prefix, token.as_deref())
                    .await?;
                let objects: Vec<Result<(Location, Stat)>> = page
                    .objects
                    .into_iter()
                    .filter(|(key, stat)| markers || !(stat.size == 0 && key.ends_with('/')))
                    .map(|(key, stat)| Ok((folder.with_key(&key), stat)))
                    .collect();
                let next = page.next.map(Some);
                Ok::<_, crate::Error>(Some((futures::stream::iter(objects), (stores, next))))
            }
        })
        .try_flatten()
        .boxed()
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
        self.look(wanted, Unlisted::LookedAt).await
    }

    /// The same of places that are about to be written with create-only requests: what a listing that
    /// came to its end does not show is taken to be absent, for if it is there after all it will be kept.
    /// One request per 1,000 objects of a folder where many are wanted.
    ///
    /// # Errors
    ///
    /// As [`Stores::stat_all`].
    pub(crate) async fn stat_places(
        &self,
        wanted: &[Location],
    ) -> Result<HashMap<Location, Option<Stat>>> {
        self.look(wanted, Unlisted::Absent).await
    }

    async fn look(
        &self,
        wanted: &[Location],
        unlisted: Unlisted,
    ) -> Result<HashMap<Location, Option<Stat>>> {
        let mut by_folder: BTreeMap<Option<Location>, Vec<&Location>> = BTreeMap::new();
        for at in wanted {
            by_folder.entry(at.parent()).or_default().push(at);
        }
        let mut found: HashMap<Location, Option<Stat>> = HashMap::with_capacity(wanted.len());
        let mut single: Vec<Location> = Vec::new();
        for (folder, objects) in by_folder {
            let mut whole = false;
            if let Some(folder) = &folder
                && objects.len() >= LISTING_PAYS_FROM
                && can_list(folder.provider(), unlisted)
            {
                whole = self.list_into(folder, &objects, &mut found).await?;
            }
            for at in objects {
                let listed = found.contains_key(at);
                if listed && tells_all(at.provider()) {
                    continue;
                }
                match !listed && whole && unlisted == Unlisted::Absent {
                    true => drop(found.insert(at.clone(), None)),
                    false => single.push(at.clone()),
                }
            }
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
    /// key, or that shows mostly strangers, just adds less. True if nothing more can be there.
    async fn list_into(
        &self,
        folder: &Location,
        objects: &[&Location],
        found: &mut HashMap<Location, Option<Stat>>,
    ) -> Result<bool> {
        let looked_for: HashMap<&str, &Location> =
            objects.iter().map(|at| (at.key(), *at)).collect();
        let mut left = objects.len();
        let mut strangers = 0;
        let mut listing = self.list_stream(folder)?;
        while let Some(next) = listing.next().await {
            let (at, stat) = match next {
                Ok(next) => next,
                // No right to list, or a key that the client cannot address: that is no reason to
                // fail, the objects may be there and readable.
                Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
                    return Ok(false);
                }
                Err(e) => return Err(e),
            };
            match looked_for.get(at.key()) {
                Some(at) => {
                    if found.insert((*at).clone(), Some(stat)).is_none() {
                        left -= 1;
                    }
                    if left == 0 {
                        return Ok(true);
                    }
                }
                None => {
                    strangers += 1;
                    if strangers > STRANGERS_PER_OBJECT * objects.len() {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}

/// What to think of an object that a listing of its folder does not show.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unlisted {
    /// It is looked at, so that nobody takes it for lost.
    LookedAt,
    /// It is not there.
    Absent,
}

/// A local folder is looked at file by file at the same cost.
fn can_list(provider: Provider, unlisted: Unlisted) -> bool {
    provider != Provider::Local && (unlisted == Unlisted::Absent || tells_all(provider))
}

/// Google's listing shows no generations, which its copies are pinned to.
fn tells_all(provider: Provider) -> bool {
    provider != Provider::Gcs
}
