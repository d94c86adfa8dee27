//! The verb: make a second object with equal bytes, without moving them through us if possible.

use object_store::ObjectStore;

use crate::error::{Error, ErrorKind, Result};

use super::errors;
use super::location::Location;
use super::method::{self, Choice, Facts, Method};
use super::open::{Backend, Stores};
use super::receipt::Receipt;
use super::stat::Stat;
use super::{compare, local, relay};

/// What to do about an object that is already at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Leave it and fail with `AlreadyExists`.
    #[default]
    Refuse,
    /// Replace it.
    Overwrite,
}

/// How [`Stores::duplicate`] shall do it.
#[derive(Debug, Clone, Default)]
pub struct DuplicateOptions {
    /// What to do about an object that is already at the destination.
    pub existing: Existing,
    /// What is known of the source. Saves one request; and the copy fails with `Conflict` if the
    /// source is no longer this one.
    pub source: Option<Stat>,
    /// The caller has just seen that nothing is at the destination. Saves one request on S3, where
    /// we look first because some servers ignore the condition that would keep an existing object.
    pub destination_is_free: bool,
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
    pub(crate) create_only: bool,
}

impl CopyOrder<'_> {
    /// The object at the destination, if there is one.
    pub(crate) async fn look_at_destination(
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

    /// What it means that a condition failed: after a lost reply perhaps that our copy is there
    /// already (`Ok`), else that the destination is taken or that the source changed. The answer
    /// does not say which, so we look.
    pub(crate) async fn explain_refusal(
        &self,
        from: &dyn ObjectStore,
        to: &dyn ObjectStore,
        uncertain_before: bool,
    ) -> Result<object_store::ObjectMeta> {
        match self.look_at_destination(to).await? {
            Some(there) if uncertain_before && self.is_our_copy(&there, from, to).await? => {
                Ok(there)
            }
            Some(_) if self.create_only => Err(self.taken()),
            _ => Err(self.source_changed()),
        }
    }

    /// After a lost reply: is what lies at the destination the copy that we asked for? Where both
    /// ETags are plain content hashes (no multipart suffix) they tell; elsewhere, as an object of
    /// somebody else may have the same size, both are read.
    pub(crate) async fn is_our_copy(
        &self,
        there: &object_store::ObjectMeta,
        from: &dyn ObjectStore,
        to: &dyn ObjectStore,
    ) -> Result<bool> {
        let comparable = |tag: &str| {
            let tag = tag.trim_matches('"');
            tag.len() == 32 && tag.bytes().all(|b| b.is_ascii_hexdigit())
        };
        if there.size != self.size {
            return Ok(false);
        }
        match (self.source_etag, there.e_tag.as_deref()) {
            (Some(a), Some(b)) if comparable(a) && comparable(b) => {
                Ok(a.trim_matches('"') == b.trim_matches('"'))
            }
            _ => compare::same_bytes(self, from, to).await,
        }
    }

    pub(crate) fn taken(&self) -> Error {
        Error::new(ErrorKind::AlreadyExists, "an object is already there")
            .during("copy to")
            .at(self.destination)
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

/// What a provider's code answers.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) method: Method,
    pub(crate) tag: Option<String>,
    pub(crate) attempts: u32,
}

impl Copied {
    pub(crate) fn new(method: Method, tag: Option<String>) -> Copied {
        Copied {
            method,
            tag,
            attempts: 1,
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
        let facts = match (&from.backend, &to.backend) {
            (Backend::Azure(a), Backend::Azure(b)) => Facts {
                size,
                one_service: a.account() == b.account(),
                customer_keys: false,
            },
            (Backend::S3(a), Backend::S3(b)) => Facts {
                size,
                one_service: true,
                customer_keys: a.customer_keys || b.customer_keys,
            },
            _ => Facts {
                size,
                one_service: true,
                customer_keys: false,
            },
        };
        Ok(method::choose(
            &source.bucket(),
            &destination.bucket(),
            facts,
        ))
    }

    /// Makes `destination` an independent object with the bytes of `source`.
    ///
    /// Inside one service the service copies; on local disk the file system does; between
    /// different stores the bytes pass through this process in bounded memory. The source is
    /// pinned: one that changes meanwhile gives `Conflict`, never a mixture.
    ///
    /// Costs one request for the copy (a Google rewrite or a pending Azure copy may need more),
    /// plus one to look at the source if [`DuplicateOptions::source`] is not given, plus on S3 one
    /// to look at the destination unless [`DuplicateOptions::destination_is_free`]. A relay costs
    /// one read per 8 MiB and one write per part.
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
        if self.canonical(source) == self.canonical(destination) {
            return Err(Error::invalid("source and destination are the same object")
                .during("duplicate")
                .at(source));
        }
        let stat = match &options.source {
            Some(stat) => stat.clone(),
            None => self.stat(source).await?,
        };
        let choice = self.method(source, destination, stat.size)?;
        let order = CopyOrder {
            source,
            destination,
            size: stat.size,
            source_tag: stat.pin(source.provider()),
            source_etag: stat.tag.as_deref(),
            create_only: options.existing == Existing::Refuse,
        };
        // MinIO and others ignore If-None-Match on a copy and overwrite; PUT honours it everywhere.
        if order.create_only
            && choice.method == Method::S3Copy
            && !options.destination_is_free
            && self.find(destination).await?.is_some()
        {
            return Err(order.taken());
        }
        let (from, to) = (self.open(source)?, self.open(destination)?);
        let copied = match (choice.method, &from.backend, &to.backend) {
            (Method::S3Copy, Backend::S3(from), Backend::S3(to)) => {
                to.copy(self.http()?, from, &order).await?
            }
            (Method::GcsRewrite, Backend::Gcs(from), Backend::Gcs(to)) => {
                to.copy(self.http()?, from, &order).await?
            }
            (Method::AzureCopy, Backend::Azure(from), Backend::Azure(to)) => {
                to.copy(self.http()?, from, &order).await?
            }
            (Method::LocalCopy, Backend::Local, Backend::Local) => {
                let (from, to) = (source.clone(), destination.clone());
                let (tag, create_only) = (order.source_tag.map(str::to_string), order.create_only);
                super::blocking(move || local::copy(&from, tag.as_deref(), &to, create_only))
                    .await?
            }
            (Method::MemoryCopy, Backend::Memory(store), Backend::Memory(_)) => {
                copy_in_memory(store, &order).await?
            }
            _ => relay::copy(self, &order).await?,
        };
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
