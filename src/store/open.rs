//! From a location to a client: one client per bucket, made when it is first needed.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::client::HttpClient;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, ErrorKind, Result};

use super::azure::AzureContainer;
use super::gcs::GcsBucket;
use super::http::Wire;
use super::location::{Bucket, Location, Provider};
use super::options::Options;
use super::pacing::{self, Pacer};
use super::reach::{Reach, SharedClients};
use super::relay::{Buffer, Buffers};
use super::s3::S3Bucket;
use super::stat::Stat;
use super::{errors, local};

/// Bytes that pass through this process at once when different stores are bridged, unless the setting
/// [`RELAY_MEMORY_SETTING`] says otherwise: eight parts, enough for 0.6 GB/s at a tenth of a second each.
pub const RELAY_BUDGET_BYTES: u64 = 64 * 1024 * 1024;
/// The setting for it, in MiB.
pub const RELAY_MEMORY_SETTING: &str = "FORKPOINT_RELAY_MEMORY_MIB";
/// One permit of the budget.
const PERMIT_BYTES: u64 = 64 * 1024;

/// The stores of one program: opens buckets on demand and does everything by location.
///
/// Cheap to clone; clones share clients and budgets.
#[derive(Clone)]
pub struct Stores(Arc<Shared>);

struct Shared {
    options: Options,
    opened: Mutex<HashMap<Bucket, Arc<Store>>>,
    memory: Arc<InMemory>,
    clients: SharedClients,
    relay: Arc<Semaphore>,
    /// Permits of the relay's budget in all.
    relay_permits: u64,
    buffers: Arc<Buffers>,
    /// Requests of our own in flight to one bucket at most.
    ceiling: usize,
}

/// One opened bucket.
pub struct Store {
    pub(crate) bucket: Bucket,
    pub(crate) backend: Backend,
    objects: Option<Arc<dyn ObjectStore>>,
    /// For our own requests; none where there are none.
    http: Option<HttpClient>,
    pub(crate) pacer: Pacer,
    /// The service was seen to refuse copies of parts.
    no_part_copy: AtomicBool,
    /// ETags that look like checksums of the content were seen not to be.
    tags_no_checksums: AtomicBool,
    /// Whether the service keeps an existing object when a copy asks for it; probed once.
    conditions: tokio::sync::OnceCell<bool>,
}

pub(crate) enum Backend {
    Local,
    Memory(Arc<InMemory>),
    S3(S3Bucket),
    Gcs(GcsBucket),
    Azure(AzureContainer),
}

impl Store {
    /// The bucket this is a client of.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) fn copies_parts(&self) -> bool {
        !self.no_part_copy.load(Ordering::Relaxed)
    }

    pub(crate) fn learn_no_part_copy(&self) {
        self.no_part_copy.store(true, Ordering::Relaxed);
    }

    pub(crate) fn tags_are_checksums(&self) -> bool {
        !self.tags_no_checksums.load(Ordering::Relaxed)
    }

    pub(crate) fn learn_tags_are_no_checksums(&self) {
        self.tags_no_checksums.store(true, Ordering::Relaxed);
    }

    pub(crate) fn conditions(&self) -> &tokio::sync::OnceCell<bool> {
        &self.conditions
    }

    /// object_store's client; `None` for the local file system, which we serve ourselves.
    pub(crate) fn objects(&self) -> Option<&Arc<dyn ObjectStore>> {
        self.objects.as_ref()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.bucket).finish()
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

impl Stores {
    /// Stores with settings from the environment of this process.
    pub fn from_env() -> Stores {
        Stores::new(Options::from_env())
    }

    /// Stores with the given settings.
    pub fn new(options: Options) -> Stores {
        Stores::with_ceiling(options, pacing::CEILING)
    }

    /// Stores with the given settings, that have at most `ceiling` requests of our own in flight to
    /// one bucket. How many really are, is learned from the store's answers.
    pub fn with_ceiling(options: Options, ceiling: usize) -> Stores {
        let budget = match options.get(RELAY_MEMORY_SETTING).map(str::parse::<u64>) {
            Some(Ok(mib)) => mib.clamp(1, 1 << 20) * 1024 * 1024,
            Some(Err(e)) => {
                tracing::warn!("{RELAY_MEMORY_SETTING} is no number of MiB ({e}): not used");
                RELAY_BUDGET_BYTES
            }
            None => RELAY_BUDGET_BYTES,
        };
        let relay_permits = budget / PERMIT_BYTES;
        let permits = usize::try_from(relay_permits).unwrap_or(usize::MAX);
        Stores(Arc::new(Shared {
            options,
            opened: Mutex::default(),
            memory: Arc::default(),
            clients: SharedClients::default(),
            relay: Arc::new(Semaphore::new(permits)),
            relay_permits,
            buffers: Buffers::new(usize::try_from(budget).unwrap_or(usize::MAX)),
            ceiling,
        }))
    }

    /// The client of the bucket that holds `at`. No request.
    ///
    /// # Errors
    ///
    /// `Invalid` if the settings do not make a client.
    pub fn open(&self, at: &Location) -> Result<Arc<Store>> {
        let bucket = self.canonical(at).bucket();
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.get(&bucket) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(self.connect(bucket.clone()).map_err(|e| e.at(at))?);
        opened.insert(bucket, Arc::clone(&store));
        Ok(store)
    }

    fn connect(&self, bucket: Bucket) -> Result<Store> {
        let reach = Reach::by(&self.0.clients);
        let connector = reach.connector.clone();
        let backend = match bucket.provider {
            Provider::Other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("there is no client for {}", bucket.name),
                )
                .during("open")
                .hint(
                    "supported are file:, s3: (s3a:, s3n:, s3p:), gs:, az:, abfs(s): and wasb(s):",
                ));
            }
            Provider::Local => Backend::Local,
            Provider::Memory => Backend::Memory(Arc::clone(&self.0.memory)),
            Provider::S3 => Backend::S3(S3Bucket::open(&bucket.name, &self.0.options, reach)?),
            Provider::Gcs => Backend::Gcs(GcsBucket::open(&bucket.name, &self.0.options, reach)?),
            Provider::Azure => {
                Backend::Azure(AzureContainer::open(&bucket, &self.0.options, reach)?)
            }
        };
        let objects: Option<Arc<dyn ObjectStore>> = match &backend {
            Backend::Local => None,
            Backend::Memory(store) => Some(Arc::clone(store) as _),
            Backend::S3(s3) => Some(Arc::new(s3.store.clone())),
            Backend::Gcs(gcs) => Some(Arc::new(gcs.store.clone())),
            Backend::Azure(azure) => Some(Arc::new(azure.store.clone())),
        };
        let http = match &backend {
            Backend::Local | Backend::Memory(_) => None,
            Backend::S3(_) | Backend::Gcs(_) | Backend::Azure(_) => Some(connector.client()?),
        };
        Ok(Store {
            bucket,
            backend,
            objects,
            http,
            pacer: Pacer::new(self.0.ceiling),
            no_part_copy: AtomicBool::new(false),
            tags_no_checksums: AtomicBool::new(false),
            conditions: tokio::sync::OnceCell::new(),
        })
    }

    /// The location with everything filled in that the settings add to it: for Azure the account.
    /// Two spellings of one object have equal canonical locations.
    pub fn canonical(&self, at: &Location) -> Location {
        match (at.provider(), at.bucket().account) {
            (Provider::Azure, None) => match AzureContainer::default_account(&self.0.options) {
                Some(account) => at.with_azure_account(account),
                None => at.clone(),
            },
            _ => at.clone(),
        }
    }

    /// What our own requests to `store` go through.
    pub(crate) fn wire<'a>(&'a self, store: &'a Store) -> Result<Wire<'a>> {
        Ok(Wire {
            http: store
                .http
                .as_ref()
                .ok_or_else(|| Error::invalid("this store is asked without HTTP"))?,
            pacer: &store.pacer,
        })
    }

    /// What relays may hold in memory, all together, in bytes.
    pub(crate) fn relay_memory(&self) -> u64 {
        self.0.relay_permits * PERMIT_BYTES
    }

    /// Memory for `bytes` of one range, of which there may be no more than the budget allows.
    pub(crate) fn buffer(&self, bytes: u64) -> Result<Buffer> {
        let length = usize::try_from(bytes).map_err(|_| Error::invalid("a range that long"))?;
        Ok(self.0.buffers.take(length))
    }

    /// Waits until `bytes` may be held in memory for a relay.
    pub(crate) async fn relay_budget(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let all = self.0.relay_permits;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES).min(all)).unwrap_or(u32::MAX);
        // Fails only when the semaphore is closed, which it never is.
        Arc::clone(&self.0.relay)
            .acquire_many_owned(permits)
            .await
            .ok()
    }

    /// Looks whether the bucket of `at` exists: a look at an object does not tell. One listing
    /// request for at most one page. Without the right to list there is no answer, which is fine.
    ///
    /// # Errors
    ///
    /// `NotFound` if the bucket does not exist, `Unavailable` if the store does not answer.
    pub async fn check_bucket(&self, at: &Location) -> Result<()> {
        use futures::StreamExt;
        let store = self.open(at)?;
        match &store.backend {
            Backend::Local | Backend::Memory(_) => return Ok(()),
            Backend::Gcs(gcs) => return gcs.check(self.wire(&store)?, at).await,
            Backend::S3(s3) => {
                return match s3.page(self.wire(&store)?, at, at.key(), None).await {
                    Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => {
                        Err(e)
                    }
                    _ => Ok(()),
                };
            }
            Backend::Azure(_) => {}
        }
        let Some(objects) = store.objects() else {
            return Ok(());
        };
        let mut listing = objects.list(Some(&at.object_path()?));
        match listing.next().await {
            Some(Err(e)) => match errors::from_client(e, "look at", at) {
                e if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => Err(e),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Size and tag of one object. One request.
    ///
    /// # Errors
    ///
    /// `NotFound` if the object or its bucket is not there.
    pub async fn stat(&self, at: &Location) -> Result<Stat> {
        let store = self.open(at)?;
        if let Backend::S3(s3) = &store.backend
            && !s3.customer_keys
        {
            // object_store's client does not tell the storage class.
            return s3.stat(self.wire(&store)?, at).await;
        }
        match store.objects() {
            None => {
                let at = at.clone();
                super::blocking(move || local::stat(&at)).await
            }
            Some(store) => store
                .head(&at.object_path()?)
                .await
                .map(Stat::from)
                .map_err(|e| errors::from_client(e, "look at", at)),
        }
    }

    /// Size and tag of one object, or `None` if there is no such object. One request.
    ///
    /// # Errors
    ///
    /// As [`Stores::stat`], except for a missing object. A bucket that does not exist is an error.
    pub async fn find(&self, at: &Location) -> Result<Option<Stat>> {
        match self.stat(at).await {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if errors::is_missing_object(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The whole of an object of at most `limit` bytes. One request.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `Invalid` for an object above the limit.
    pub async fn read(&self, at: &Location, limit: u64) -> Result<Bytes> {
        let store = self.open(at)?;
        let Some(store) = store.objects() else {
            let at = at.clone();
            return super::blocking(move || local::read(&at, limit)).await;
        };
        let fail = |e| errors::from_client(e, "read", at);
        let result = store.get(&at.object_path()?).await.map_err(fail)?;
        let size = result.meta.size;
        if size > limit {
            return Err(Error::invalid(format!(
                "{size} bytes, more than the {limit} that are read at most"
            ))
            .during("read")
            .at(at));
        }
        let bytes = result.bytes().await.map_err(fail)?;
        if bytes.len() as u64 != size {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the answer ended after {} of {size} bytes", bytes.len()),
            )
            .during("read")
            .at(at));
        }
        Ok(bytes)
    }

    /// Where a place really is: for local disk with symbolic links followed as far as the path exists,
    /// else its canonical form. Some system calls, no request.
    ///
    /// # Errors
    ///
    /// None but those of a broken runtime.
    pub async fn real(&self, at: &Location) -> Result<Location> {
        if at.provider() != Provider::Local {
            return Ok(self.canonical(at));
        }
        let at = at.clone();
        super::blocking(move || Ok(local::real(&at))).await
    }

    /// Removes the folders of a local object that are empty, up to and without `root`.
    pub(crate) async fn remove_empty_folders(&self, at: &Location, root: &Location) {
        if let (Provider::Local, Some(folder)) = (at.provider(), at.parent()) {
            let root = root.clone();
            let _ = super::blocking(move || {
                local::remove_empty_folders(&folder, &root);
                Ok(())
            })
            .await;
        }
    }

    /// Removes one object; one that is not there is fine. One request.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unavailable`.
    pub async fn delete(&self, at: &Location) -> Result<()> {
        let store = self.open(at)?;
        let result = match store.objects() {
            None => {
                let at = at.clone();
                super::blocking(move || local::delete(&at)).await
            }
            Some(store) => store
                .delete(&at.object_path()?)
                .await
                .map_err(|e| errors::from_client(e, "delete", at)),
        };
        match result {
            Err(e) if errors::is_missing_object(&e) => Ok(()),
            other => other,
        }
    }
}
