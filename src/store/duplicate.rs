//! The verb: make a second object with equal bytes, without moving them through us if possible.

use std::sync::Arc;

use object_store::ObjectStore;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Cancel;

use super::errors;
use super::http::Attempt;
use super::location::{Location, Provider};
use super::method::{self, Choice, Facts, Method};
use super::open::{Backend, Store, Stores};
use super::receipt::Receipt;
use super::s3::{PartOptions, PartSource};
use super::stat::Stat;
use super::unfinished::{NoLog, UnfinishedLog};
use super::{local, relay};

/// What to do about an object that is already at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Leave it and fail with `AlreadyExists`.
    #[default]
    Refuse,
    /// Replace it.
    Overwrite,
}

/// What a duplicate keeps besides the bytes. Google and Azure always keep headers and metadata;
/// a relay keeps none; access lists, locks and legal holds are never copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preserve {
    /// Content-Type, Cache-Control and their like.
    pub content_headers: bool,
    /// The user's own metadata.
    pub user_metadata: bool,
    /// Tags. On S3 they need the right to read them for objects copied in parts.
    pub tags: bool,
    /// The storage class. On S3 it is known from a listing, or read for objects copied in parts.
    pub storage_class: bool,
    /// The kind of encryption, for objects copied in parts; settings for what we write are stronger.
    pub encryption: bool,
}

impl Preserve {
    /// Everything.
    pub const ALL: Preserve = Preserve {
        content_headers: true,
        user_metadata: true,
        tags: true,
        storage_class: true,
        encryption: true,
    };
    /// Headers and metadata; needs no right beyond reading and writing.
    pub const METADATA: Preserve = Preserve {
        tags: false,
        storage_class: false,
        ..Preserve::ALL
    };
    /// Only the bytes, and no weaker encryption.
    pub const NONE: Preserve = Preserve {
        content_headers: false,
        user_metadata: false,
        ..Preserve::METADATA
    };
}

impl Default for Preserve {
    fn default() -> Self {
        Preserve::ALL
    }
}

/// When what was written to local disk is made to survive a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Each file before it gets its name.
    #[default]
    Each,
    /// When the system likes to.
    Never,
}

/// How [`Stores::duplicate`] shall do it.
#[derive(Clone)]
pub struct DuplicateOptions {
    /// What to do about an object that is already at the destination.
    pub existing: Existing,
    /// What is known of the source. Saves one request; and the copy fails with `Conflict` if the
    /// source is no longer this one.
    pub source: Option<Stat>,
    /// The caller has just seen that nothing is at the destination, and nobody else can have its name.
    /// Saves finding out whether an S3 server honours the condition that keeps an existing object.
    pub destination_is_free: bool,
    /// What to keep besides the bytes.
    pub preserve: Preserve,
    /// Objects from this size on are copied in parts, in bytes. Smaller ones take one request.
    pub split_at: u64,
    /// Size of a part in bytes.
    pub part_size: u64,
    /// Use the source's own part boundaries on S3, so that the ETags are comparable.
    pub keep_layout: bool,
    /// On local disk give the same file a second name instead of copying it. Then the two are not
    /// independent: who writes into one writes into the other.
    pub hard_link: bool,
    /// On local disk share blocks with the source, or fail with `Unsupported` where the file system cannot.
    pub reflink_only: bool,
    /// When local files are made durable. Object stores always are.
    pub durability: Durability,
    /// Remembers copies under way, for a run that follows a crash.
    pub log: Arc<dyn UnfinishedLog>,
    /// Asks to stop between the parts of an object.
    pub cancel: Cancel,
}

/// Default of [`DuplicateOptions::split_at`], in bytes.
pub const SPLIT_AT_BYTES: u64 = 1024 * 1024 * 1024;
/// Default of [`DuplicateOptions::part_size`], in bytes.
pub const PART_SIZE_BYTES: u64 = 128 * 1024 * 1024;

impl Default for DuplicateOptions {
    fn default() -> Self {
        DuplicateOptions {
            existing: Existing::Refuse,
            source: None,
            destination_is_free: false,
            preserve: Preserve::ALL,
            split_at: SPLIT_AT_BYTES,
            part_size: PART_SIZE_BYTES,
            keep_layout: false,
            hard_link: false,
            reflink_only: false,
            durability: Durability::Each,
            log: Arc::new(NoLog),
            cancel: Cancel::default(),
        }
    }
}

impl std::fmt::Debug for DuplicateOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DuplicateOptions")
            .field("existing", &self.existing)
            .field("preserve", &self.preserve)
            .finish_non_exhaustive()
    }
}

/// One copy as a provider's code sees it.
pub(crate) struct CopyOrder<'a> {
    pub(crate) source: &'a Location,
    pub(crate) destination: &'a Location,
    pub(crate) size: u64,
    /// What the source is pinned to.
    pub(crate) source_tag: Option<&'a str>,
    /// The source's ETag, to recognise our own copy by.
    pub(crate) source_etag: Option<&'a str>,
    pub(crate) storage_class: Option<&'a str>,
    pub(crate) create_only: bool,
    pub(crate) preserve: Preserve,
    /// Make each local file durable before it gets its name.
    pub(crate) sync: bool,
    pub(crate) cancel: &'a Cancel,
}

impl CopyOrder<'_> {
    /// The object at the destination, if there is one.
    async fn look_at_destination(
        &self,
        store: &dyn ObjectStore,
    ) -> Result<Option<object_store::ObjectMeta>> {
        use object_store::ObjectStoreExt;
        match store.head(&self.destination.object_path()?).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(errors::from_client(e, "look at", self.destination)),
        }
    }

    /// What a failed condition means: the source is another one now, somebody else's object is at
    /// the destination, or (where the reply to an earlier attempt was lost) our own copy is. The
    /// answer does not say which, so the destination is looked at. One request.
    pub(crate) async fn after_refusal(
        &self,
        store: &dyn ObjectStore,
        method: Method,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        let there = match self.look_at_destination(store).await {
            Ok(there) => there,
            Err(e) => return Attempt::Failed(e),
        };
        let Some(there) = there else {
            return Attempt::Failed(self.source_changed());
        };
        let tag = match self.destination.provider() {
            Provider::Gcs => there.version,
            _ => there.e_tag.clone(),
        };
        if uncertain_before && there.size == self.size {
            // Equal plain hashes prove it; where there are none, the contents must be compared.
            match plain_hashes(self.source_etag, there.e_tag.as_deref()) {
                Some(true) => return Attempt::Done(Copied::new(method, tag)),
                None => {
                    return Attempt::Done(Copied {
                        to_compare: true,
                        ..Copied::new(method, tag)
                    });
                }
                Some(false) => {}
            }
        }
        Attempt::Failed(self.refused())
    }

    /// What a failed condition means where something else is at the destination.
    pub(crate) fn refused(&self) -> Error {
        match self.create_only {
            true => Error::new(ErrorKind::AlreadyExists, "an object is already there")
                .during("copy to")
                .at(self.destination),
            false => self.source_changed(),
        }
    }

    pub(crate) fn source_changed(&self) -> Error {
        Error::new(
            ErrorKind::Conflict,
            "the object changed since it was looked at",
        )
        .during("copy")
        .at(self.source)
    }
}

/// Whether two ETags are equal, if both are plain MD5 hashes of the content (no multipart suffix).
pub(crate) fn plain_hashes(one: Option<&str>, other: Option<&str>) -> Option<bool> {
    let plain = |tag: Option<&str>| {
        let tag = tag?.trim_matches('"').to_ascii_lowercase();
        (tag.len() == 32 && tag.bytes().all(|b| b.is_ascii_hexdigit())).then_some(tag)
    };
    Some(plain(one)? == plain(other)?)
}

/// What a provider's code answers.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) method: Method,
    pub(crate) tag: Option<String>,
    pub(crate) attempts: u32,
    /// An object that may be ours or not: its content must be compared with the source's.
    pub(crate) to_compare: bool,
}

impl Copied {
    pub(crate) fn new(method: Method, tag: Option<String>) -> Copied {
        Copied {
            method,
            tag,
            attempts: 1,
            to_compare: false,
        }
    }
}

impl Stores {
    /// The method that [`Stores::duplicate`] would take for an object of `size` bytes, and why.
    /// No request.
    ///
    /// # Errors
    ///
    /// If one of the two stores cannot be opened.
    pub fn method(&self, source: &Location, destination: &Location, size: u64) -> Result<Choice> {
        let (from, to) = (self.open(source)?, self.open(destination)?);
        let options = DuplicateOptions::default();
        Ok(choose(&from, &to, size, &options))
    }

    /// Makes `destination` an independent object with the bytes of `source`.
    ///
    /// Inside one service the service copies; on local disk the file system does; between
    /// different stores the bytes pass through this process in bounded memory. The source is
    /// pinned: one that changes meanwhile gives `Conflict`, never a mixture.
    ///
    /// Costs one request for the copy (a Google rewrite or a pending Azure copy may need more; a
    /// copy in parts one per part and three or four), plus one to look at the source if
    /// [`DuplicateOptions::source`] is not given, plus on servers other than AWS five per bucket to
    /// try out whether conditions are honoured, unless [`DuplicateOptions::destination_is_free`]. A
    /// relay costs one read per 8 MiB and one write per part.
    ///
    /// # Errors
    ///
    /// `NotFound`: no source, or no bucket. `AlreadyExists`: the destination is taken and was
    /// not to be overwritten. `Conflict`: the source changed. `Invalid`: both are the same object.
    pub async fn duplicate(
        &self,
        source: &Location,
        destination: &Location,
        options: &DuplicateOptions,
    ) -> Result<Receipt> {
        let same = || {
            Error::invalid("source and destination are the same object")
                .during("duplicate")
                .at(source)
        };
        // Where nothing is to be replaced, a destination that is there is found out in any case.
        let local = [source, destination].map(Location::provider) == [Provider::Local; 2];
        let later = local && options.existing == Existing::Refuse;
        if !later && self.is_same(source, destination).await? {
            return Err(same());
        }
        let stat = match &options.source {
            Some(stat) => stat.clone(),
            None => self.stat(source).await?,
        };
        let (from, to) = (self.open(source)?, self.open(destination)?);
        let mut choice = choose(&from, &to, stat.size, options);
        if options.reflink_only && choice.method != Method::LocalCopy {
            return Err(
                Error::new(ErrorKind::Unsupported, "only local files can share blocks")
                    .during("duplicate")
                    .at(destination),
            );
        }
        let order = CopyOrder {
            source,
            destination,
            size: stat.size,
            source_tag: stat.pin(source.provider()),
            source_etag: stat.tag.as_deref(),
            storage_class: stat
                .storage_class
                .as_deref()
                .filter(|_| options.preserve.storage_class),
            create_only: options.existing == Existing::Refuse,
            preserve: options.preserve,
            sync: options.durability == Durability::Each,
            cancel: &options.cancel,
        };
        if order.create_only && choice.method.is_s3() && !options.destination_is_free {
            // MinIO and others ignore the condition on a copy; on completing an upload they don't.
            let honoured = self.copy_honours_conditions(&to, destination).await?;
            if choice.method == Method::S3Copy && !honoured {
                choice = method::conditions_ignored(stat.size);
            }
            // A copy in parts would be refused only at its end.
            if choice.method != Method::S3Copy && self.find(destination).await?.is_some() {
                return Err(order.refused());
            }
        }
        let mut copied = self
            .carry_out(choice.method, &order, &from, &to, options)
            .await;
        if let Err(e) = &copied
            && later
            && e.kind() == ErrorKind::AlreadyExists
            && self.is_same(source, destination).await?
        {
            return Err(same());
        }
        if let Err(e) = &copied
            && matches!(choice.method, Method::S3PartCopy | Method::AzureBlockCopy)
            && e.kind() == ErrorKind::Unsupported
        {
            tracing::info!(%destination, error = %e, "the service does not copy in parts");
            to.learn_no_part_copy();
            choice = choose(&from, &to, stat.size, options);
            copied = self
                .carry_out(choice.method, &order, &from, &to, options)
                .await;
        }
        let copied = copied?;
        if copied.to_compare && !self.same_content(source, destination, stat.size).await? {
            return Err(order.refused());
        }
        tracing::debug!(%source, %destination, method = %copied.method, bytes = stat.size, "duplicated");
        Ok(Receipt {
            source: source.clone(),
            destination: destination.clone(),
            method: copied.method,
            bytes: stat.size,
            source_tag: order.source_tag.map(str::to_string),
            destination_tag: copied.tag,
            attempts: copied.attempts,
        })
    }

    /// Are they one object? For local files that costs a look at the destination, where mostly nothing is.
    async fn is_same(&self, source: &Location, destination: &Location) -> Result<bool> {
        if (source.provider(), destination.provider()) == (Provider::Local, Provider::Local) {
            let (from, to) = (source.clone(), destination.clone());
            return super::blocking(move || Ok(local::is_same(&from, &to))).await;
        }
        Ok(self.canonical(source) == self.canonical(destination))
    }

    async fn carry_out(
        &self,
        method: Method,
        order: &CopyOrder<'_>,
        from: &Arc<Store>,
        to: &Arc<Store>,
        options: &DuplicateOptions,
    ) -> Result<Copied> {
        // All but the plain copy boxed: a hundred thousand tasks need not have room for the largest.
        match (method, &from.backend, &to.backend) {
            (Method::S3Copy, Backend::S3(from), Backend::S3(into)) => {
                into.copy(self.wire(to)?, from, order).await
            }
            (Method::S3PartCopy, Backend::S3(from), Backend::S3(into)) => {
                let parts = PartOptions {
                    part_size: options.part_size,
                    keep_layout: options.keep_layout,
                };
                let from = PartSource::Bucket(from, parts);
                Box::pin(into.copy_in_parts(self.wire(to)?, &from, order, &*options.log)).await
            }
            (Method::GcsRewrite, Backend::Gcs(from), Backend::Gcs(into)) => {
                Box::pin(into.copy(self.wire(to)?, from, order, &*options.log)).await
            }
            (Method::AzureCopy, Backend::Azure(from), Backend::Azure(into)) => {
                into.copy(self.wire(to)?, from, order).await
            }
            (Method::AzureBlockCopy, Backend::Azure(from), Backend::Azure(into)) => {
                Box::pin(into.copy_blocks(self.wire(to)?, from, order)).await
            }
            (Method::LocalCopy | Method::LocalHardLink, Backend::Local, Backend::Local) => {
                let (from, to) = (order.source.clone(), order.destination.clone());
                let (tag, create_only) = (order.source_tag.map(str::to_string), order.create_only);
                let (link, sync) = (method == Method::LocalHardLink, order.sync);
                let how = match options.reflink_only {
                    true => local::How::Reflink,
                    false => local::How::Any,
                };
                super::blocking(move || match link {
                    true => local::link(&from, &to, create_only),
                    false => local::copy(&from, tag.as_deref(), &to, create_only, sync, how),
                })
                .await
            }
            (Method::MemoryCopy, Backend::Memory(store), Backend::Memory(_)) => {
                copy_in_memory(store, order).await
            }
            _ => Box::pin(relay::copy(self, order, &*options.log)).await,
        }
    }
}

fn choose(from: &Store, to: &Store, size: u64, options: &DuplicateOptions) -> Choice {
    let mut facts = Facts {
        size,
        one_service: true,
        customer_keys: false,
        split_at: options.split_at,
        part_copy: to.copies_parts(),
        hard_link: options.hard_link,
    };
    match (&from.backend, &to.backend) {
        (Backend::Azure(a), Backend::Azure(b)) => facts.one_service = a.account() == b.account(),
        (Backend::S3(a), Backend::S3(b)) => {
            facts.customer_keys = a.customer_keys || b.customer_keys
        }
        _ => {}
    }
    method::choose(&from.bucket, &to.bucket, facts)
}

/// Both names share the same immutable bytes; nobody can write into either.
async fn copy_in_memory(
    store: &object_store::memory::InMemory,
    order: &CopyOrder<'_>,
) -> Result<Copied> {
    use object_store::{CopyMode, CopyOptions};
    let mode = if order.create_only {
        CopyMode::Create
    } else {
        CopyMode::Overwrite
    };
    let options = CopyOptions {
        mode,
        ..Default::default()
    };
    let (from, to) = (
        order.source.object_path()?,
        order.destination.object_path()?,
    );
    store.copy_opts(&from, &to, options).await.map_err(|e| {
        let at = match &e {
            object_store::Error::NotFound { .. } => order.source,
            _ => order.destination,
        };
        errors::from_client(e, "copy", at)
    })?;
    Ok(Copied::new(Method::MemoryCopy, None))
}
