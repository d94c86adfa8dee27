//! What the server holds: buckets of objects and unfinished uploads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use md5::{Digest, Md5};

use super::azure_copy::Target;
use super::content::Content;
use super::faults::{Pending, PendingEnd};
use super::gcs_upload::Session;
use super::log::Service;

/// An ETag by the rules of AWS: a digest, with the number of parts if it was made of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    digest: [u8; 16],
    parts: u32,
}

impl Tag {
    pub fn of(content: &Content) -> Tag {
        Tag {
            digest: content.digest(),
            parts: 0,
        }
    }

    /// The digest of the digests of the parts.
    pub fn of_parts<'a>(parts: impl Iterator<Item = &'a Tag>) -> Tag {
        let mut md5 = Md5::new();
        let mut count = 0;
        for part in parts {
            md5.update(part.digest);
            count += 1;
        }
        Tag {
            digest: md5.finalize().into(),
            parts: count,
        }
    }
}

/// With its quotes, as it stands in headers.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for byte in self.digest {
            write!(f, "{byte:02x}")?;
        }
        match self.parts {
            0 => f.write_str("\""),
            n => write!(f, "-{n}\""),
        }
    }
}

/// What is kept of an object besides its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// `content-type` and the like under their own names, a user's metadata as `meta-NAME`.
    pub headers: BTreeMap<String, String>,
    /// In the form of a query, as they are sent.
    pub tags: String,
    /// Absent for the default.
    pub class: Option<String>,
}

/// The copy that made an Azure blob.
#[derive(Debug)]
pub struct CopyState {
    pub id: String,
    pub source: String,
    /// What lies there when it has succeeded, while it is pending.
    pub target: Option<Target>,
    pub state: Mutex<CopyProgress>,
}

#[derive(Debug)]
pub enum CopyProgress {
    Pending {
        since: Instant,
        looks: u32,
        plan: Pending,
    },
    Ended(PendingEnd),
}

impl CopyState {
    pub fn progress(&self) -> MutexGuard<'_, CopyProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One object. Never changed: a write puts another in its place.
#[derive(Debug)]
pub struct Object {
    pub content: Arc<Content>,
    pub tag: Tag,
    /// Sizes of the parts, if it was made of parts.
    pub parts: Option<Arc<[u64]>>,
    pub meta: Arc<Meta>,
    pub generation: u64,
    /// Seconds since 1970.
    pub modified: u64,
    pub copy: Option<Box<CopyState>>,
}

impl Object {
    /// An object written in one piece.
    pub fn new(content: Arc<Content>, meta: Arc<Meta>) -> Object {
        Object {
            tag: Tag::of(&content),
            content,
            parts: None,
            meta,
            generation: 0,
            modified: 0,
            copy: None,
        }
    }

    /// As [`Object::new`], for content whose tag is known already.
    pub fn with_tag(content: Arc<Content>, tag: Tag, meta: Arc<Meta>) -> Object {
        Object {
            content,
            tag,
            parts: None,
            meta,
            generation: 0,
            modified: 0,
            copy: None,
        }
    }
}

/// One part of an upload, or one block of a blob.
#[derive(Debug, Clone)]
pub struct Part {
    pub content: Arc<Content>,
    pub tag: Tag,
}

/// An upload that is not completed.
#[derive(Debug)]
pub struct Upload {
    pub key: String,
    pub meta: Arc<Meta>,
    pub parts: BTreeMap<u32, Part>,
}

/// A bucket or container.
#[derive(Debug, Default)]
pub struct Bucket {
    objects: Mutex<BTreeMap<String, Arc<Object>>>,
    uploads: Mutex<BTreeMap<String, Upload>>,
    /// The tag that each completed upload gave.
    pub completed: Mutex<HashMap<String, Tag>>,
    /// Azure: blocks that no list names yet, and those of the present list, by blob.
    blocks: Mutex<HashMap<String, Blocks>>,
    /// Google: resumable uploads, and those that have made their object.
    sessions: Mutex<HashMap<String, Session>>,
    pub made: Mutex<HashSet<String>>,
}

/// The blocks of one Azure blob.
#[derive(Debug, Default, Clone)]
pub struct Blocks {
    pub uncommitted: BTreeMap<String, Part>,
    pub committed: Vec<(String, Part)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bucket {
    pub fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Object>>> {
        lock(&self.objects)
    }

    pub fn uploads(&self) -> MutexGuard<'_, BTreeMap<String, Upload>> {
        lock(&self.uploads)
    }

    pub fn blocks(&self) -> MutexGuard<'_, HashMap<String, Blocks>> {
        lock(&self.blocks)
    }

    pub fn sessions(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        lock(&self.sessions)
    }

    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.objects().get(key).cloned()
    }
}

/// A Google rewrite between two calls.
#[derive(Debug)]
pub struct Rewrite {
    /// Source and destination, which every call must repeat.
    pub pair: [String; 4],
    pub source: Arc<Object>,
    pub done: u64,
    pub issued: Instant,
}

/// Everything that the server holds.
#[derive(Debug, Default)]
pub struct State {
    buckets: RwLock<HashMap<(Service, String), Arc<Bucket>>>,
    rewrites: Mutex<HashMap<String, Rewrite>>,
    numbers: AtomicU64,
}

impl State {
    pub fn create_bucket(&self, service: Service, name: &str) -> Arc<Bucket> {
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(buckets.entry((service, name.to_string())).or_default())
    }

    pub fn bucket(&self, service: Service, name: &str) -> Option<Arc<Bucket>> {
        self.buckets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(service, name.to_string()))
            .cloned()
    }

    pub fn bucket_names(&self, service: Service) -> Vec<String> {
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = buckets
            .keys()
            .filter(|(s, _)| *s == service)
            .map(|(_, name)| name.clone())
            .collect();
        names.sort();
        names
    }

    pub fn rewrites(&self) -> MutexGuard<'_, HashMap<String, Rewrite>> {
        lock(&self.rewrites)
    }

    /// A number that was never given before, larger than all before.
    pub fn next_number(&self) -> u64 {
        // Looks like Google's generations: microseconds.
        1_700_000_000_000_000 + self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts `object` at `key` if `admit` agrees to what is there.
    pub fn put<E>(
        &self,
        bucket: &Bucket,
        key: &str,
        mut object: Object,
        admit: impl FnOnce(Option<&Object>) -> Result<(), E>,
    ) -> Result<Arc<Object>, E> {
        let mut objects = bucket.objects();
        admit(objects.get(key).map(|o| &**o))?;
        object.generation = self.next_number();
        object.modified = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let object = Arc::new(object);
        objects.insert(key.to_string(), Arc::clone(&object));
        Ok(object)
    }
}
