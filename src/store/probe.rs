//! What a service really does, found out by trying.

use std::time::Instant;

use bytes::Bytes;
use object_store::ObjectStoreExt;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};

use super::duplicate::{CopyOrder, DuplicateOptions, Preserve};

use super::location::{Location, Provider};
use super::method::{Choice, Method};
use super::open::{Backend, Store, Stores};
use super::{errors, local};

impl Stores {
    /// Does the service keep an existing object when a copy asks it to? Found out once per bucket by
    /// a copy onto an object of our own beside `at`, which must be refused. AWS is known to.
    /// Five requests the first time, then none.
    pub(crate) async fn copy_honours_conditions(
        &self,
        store: &Store,
        at: &Location,
    ) -> Result<bool> {
        store
            .conditions()
            .get_or_try_init(|| async {
                match &store.backend {
                    Backend::S3(s3) if !s3.is_aws() => self.try_conditions(store, at).await,
                    _ => Ok(true),
                }
            })
            .await
            .copied()
    }

    async fn try_conditions(&self, store: &Store, at: &Location) -> Result<bool> {
        let folder = at
            .parent()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "an object has a parent"))?;
        let name = format!(".forkpoint-probe-{:016x}", clock::random_id());
        let (one, two) = (
            folder.join(&format!("{name}-a"))?,
            folder.join(&format!("{name}-b"))?,
        );
        self.put(&one, Bytes::from_static(b"a"), true).await?;
        self.put(&two, Bytes::from_static(b"b"), true).await?;
        let order = CopyOrder {
            source: &one,
            destination: &two,
            size: 1,
            source_tag: None,
            source_etag: None,
            storage_class: None,
            create_only: true,
            preserve: Preserve::NONE,
            sync: false,
            cancel: &Cancel::default(),
        };
        let tried = match &store.backend {
            Backend::S3(s3) => s3.copy(self.wire(store)?, s3, &order).await,
            _ => return Ok(true),
        };
        for probe in [&one, &two] {
            if let Err(e) = self.delete(probe).await {
                tracing::warn!(at = %probe, error = %e, "a probe could not be removed");
            }
        }
        match tried {
            Ok(_) => {
                tracing::info!(bucket = ?store.bucket(), "the service ignores conditions on copies");
                Ok(false)
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(true),
            Err(e) => Err(e),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// Sizes of the objects to duplicate, in bytes.
    pub sizes: Vec<u64>,
    /// How often each.
    pub rounds: u32,
}

/// How long duplicates of one size took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Size of the object in bytes.
    pub bytes: u64,
    /// How it was duplicated.
    pub method: Method,
    /// Milliseconds of each round, sorted.
    pub millis: Vec<f64>,
}

impl Timing {
    /// The median in milliseconds; the lower one of two.
    pub fn median(&self) -> Option<f64> {
        self.millis
            .get(self.millis.len().saturating_sub(1) / 2)
            .copied()
    }
}

/// What was found out about a pair of stores. `None`: does not apply to it.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    /// The folder read from.
    pub source: Location,
    /// The folder written to.
    pub destination: Location,
    /// How a small object is duplicated, and why so.
    pub choice: Choice,
    /// A copy that asks for it leaves an existing object as it is.
    pub create_only_copy: Option<bool>,
    /// A write that asks for it leaves an existing object as it is.
    pub create_only_put: Option<bool>,
    /// Objects can be copied in parts.
    pub part_copy: Option<bool>,
    /// Measured times.
    pub timings: Vec<Timing>,
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Cancelled, "asked to stop").during("probe")
}

/// Bytes that are written again and again to make a large object.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;

impl Stores {
    /// Tries out what the pair of stores does, with objects of its own below both folders, which are
    /// removed again, also when it is asked to stop.
    ///
    /// # Errors
    ///
    /// What reading, writing and copying give; `Cancelled`.
    pub async fn probe(
        &self,
        source: &Location,
        destination: &Location,
        options: &ProbeOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<ProbeReport> {
        let name = format!(".forkpoint-probe-{:016x}", clock::random_id());
        let (from, to) = (
            source.join(&name)?,
            destination.join(&format!("{name}-copies"))?,
        );
        progress.begin("probing", 0, 0);
        let result = tokio::select! {
            result = self.try_all(&from, &to, source, destination, options) => result,
            () = cancel.cancelled() => cancel.check().and_then(|()| Err(no_answer())),
        };
        progress.end();
        for folder in [&from, &to] {
            // Of an object that was being written, or copied in parts.
            if folder.provider() == Provider::S3 {
                match self.open_uploads(folder).await {
                    Ok(uploads) => {
                        for upload in uploads {
                            self.abort_upload(&upload).await?;
                        }
                    }
                    Err(e) => tracing::warn!(%e, "open uploads could not be looked for"),
                }
            }
            for (at, _) in self.list(folder).await? {
                self.delete(&at).await?;
            }
            self.remove_empty_folders(
                &folder.join("x")?,
                &folder.parent().unwrap_or(folder.clone()),
            )
            .await;
        }
        result
    }

    async fn try_all(
        &self,
        from: &Location,
        to: &Location,
        source: &Location,
        destination: &Location,
        options: &ProbeOptions,
    ) -> Result<ProbeReport> {
        let small = from.join("small")?;
        self.put(&small, Bytes::from_static(b"small"), true).await?;
        let choice = self.method(&small, &to.join("small")?, 5)?;
        let taken = to.join("taken")?;
        self.put(&taken, Bytes::from_static(b"taken"), true).await?;
        let kept = |result: Result<()>| match result {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(true),
            Err(e) => Err(e),
            Ok(()) => Ok(false),
        };
        let create_only_put = kept(
            self.put(&taken, Bytes::from_static(b"other"), true)
                .await
                .map(|_| ()),
        )?;
        let store = self.open(to)?;
        let create_only_copy = match &store.backend {
            Backend::S3(_) if choice.method.is_s3() => {
                Some(self.try_conditions(&store, &to.join("x")?).await?)
            }
            _ => {
                let options = DuplicateOptions {
                    destination_is_free: true,
                    ..DuplicateOptions::default()
                };
                Some(kept(
                    self.duplicate(&small, &taken, &options).await.map(|_| ()),
                )?)
            }
        };
        let part_copy = match choice.method.is_s3() {
            true => Some(self.try_part_copy(&small, &to.join("parts")?).await?),
            false => None,
        };
        let mut timings = Vec::new();
        for &bytes in &options.sizes {
            timings.push(self.time(from, to, bytes, options.rounds).await?);
        }
        Ok(ProbeReport {
            source: source.clone(),
            destination: destination.clone(),
            choice,
            create_only_copy,
            create_only_put: Some(create_only_put),
            part_copy,
            timings,
        })
    }

    async fn try_part_copy(&self, from: &Location, to: &Location) -> Result<bool> {
        let options = DuplicateOptions {
            split_at: 1,
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let receipt = self.duplicate(from, to, &options).await?;
        Ok(receipt.method == Method::S3PartCopy)
    }

    async fn time(
        &self,
        from: &Location,
        to: &Location,
        bytes: u64,
        rounds: u32,
    ) -> Result<Timing> {
        let source = from.join(&format!("bytes-{bytes}"))?;
        self.fill(&source, bytes).await?;
        let options = DuplicateOptions {
            source: Some(self.stat(&source).await?),
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let mut millis = Vec::new();
        let mut method = Method::Relay;
        for round in 0..rounds {
            let destination = to.join(&format!("bytes-{bytes}-{round}"))?;
            let began = Instant::now();
            method = self
                .duplicate(&source, &destination, &options)
                .await?
                .method;
            millis.push(began.elapsed().as_secs_f64() * 1000.0);
            self.delete(&destination).await?;
        }
        millis.sort_by(f64::total_cmp);
        Ok(Timing {
            bytes,
            method,
            millis,
        })
    }

    /// Writes an object of `bytes` bytes that do not compress: small ones with one request, large ones
    /// in parts.
    async fn fill(&self, at: &Location, bytes: u64) -> Result<()> {
        let step = |left: u64| usize::try_from(left).map_or(CHUNK_BYTES, |n| n.min(CHUNK_BYTES));
        let mut noise = vec![0; step(bytes)];
        clock::fill_random(&mut noise);
        let chunk = Bytes::from(noise);
        if bytes <= CHUNK_BYTES as u64 {
            return self.put(at, chunk, true).await.map(|_| ());
        }
        let store = self.open(at)?;
        let Some(objects) = store.objects() else {
            let at = at.clone();
            return super::blocking(move || {
                let mut staged = local::Staged::begin(&at)?;
                let mut left = bytes;
                while left > 0 {
                    let part = chunk.slice(..step(left));
                    let written = std::io::Write::write_all(staged.file(), &part);
                    written.map_err(|e| local::from_io(e, "write", &at))?;
                    left -= part.len() as u64;
                }
                staged.publish(&at, true, false).map(|_| ())
            })
            .await;
        };
        let fail = |e| errors::from_client(e, "write", at);
        let mut upload = objects
            .put_multipart(&at.object_path()?)
            .await
            .map_err(fail)?;
        let mut left = bytes;
        while left > 0 {
            let part = chunk.slice(..step(left));
            left -= part.len() as u64;
            upload.put_part(part.into()).await.map_err(fail)?;
        }
        upload.complete().await.map_err(fail)?;
        Ok(())
    }
}
