//! What a subtask does for a snapshot: makes the duplicates that are its own, uploads what is new, refers to
//! what is there, and says so. I/O.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Silent};
use crate::restore::{ExecuteOptions, execute};
use crate::snapshot::native::{INLINE_LIMIT_BYTES, ManifestKind, ManifestScope, ManifestState};
use crate::store::{Journal, Location, Sha256Sum, Stores, UploadOptions};

use super::assemble;
use super::names;
use super::order::{
    AcknowledgedFile, AcknowledgedState, Acknowledgement, FileRef, ORDER_VERSION, Origin,
    SubtaskOrder,
};
use super::state::{FileSource, State};
use super::uploads::{UploadLists, earlier_uploads, now};

/// How a subtask writes.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Files under way at once.
    pub files_at_once: usize,
    /// How each is uploaded. Its request to stop is that of all.
    pub upload: UploadOptions,
    /// From so many uploaded bytes on it is noted what was uploaded, so that another attempt need not
    /// send it again. Less is not worth a request.
    pub list_uploads_from_bytes: u64,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions {
            files_at_once: 8,
            upload: UploadOptions::default(),
            list_uploads_from_bytes: 16 * 1024 * 1024,
        }
    }
}

/// Writes the part of one subtask in one attempt.
#[derive(Debug)]
pub struct SubtaskWriter<'a> {
    stores: &'a Stores,
    order: &'a SubtaskOrder,
    options: WriteOptions,
}

/// What can be referred to, by size.
#[derive(Default)]
struct There {
    by_size: HashMap<u64, Vec<(FileRef, ManifestScope, Origin)>>,
    /// Those that may be named without their content.
    reusable: HashSet<FileRef>,
}

impl There {
    fn add(&mut self, file: FileRef, scope: ManifestScope, origin: Origin) {
        let of_size = self.by_size.entry(file.size).or_default();
        of_size.push((file, scope, origin));
    }
}

impl<'a> SubtaskWriter<'a> {
    /// A writer for what `order` says.
    pub fn new(stores: &'a Stores, order: &'a SubtaskOrder) -> SubtaskWriter<'a> {
        SubtaskWriter {
            stores,
            order,
            options: WriteOptions::default(),
        }
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(mut self, options: WriteOptions) -> SubtaskWriter<'a> {
        self.options = options;
        self
    }

    /// Writes all states of the subtask, and returns what the coordinator wants to hear.
    ///
    /// A shared file is uploaded unless one that may be referred to has its size and its digest: files of
    /// the snapshot before, and what an attempt that failed has left. For that the content is read once
    /// more, if there is one of its size; a stream never is.
    ///
    /// Costs one upload per new file ([`Stores::upload`]), and up to one small write per 64 MiB.
    ///
    /// # Errors
    ///
    /// `Invalid` for a file that may not be referred to, or too much state for the manifest; `Refused` when
    /// the attempt's time is up; `Cancelled`; and what uploads answer. The subtask may write again in
    /// another attempt, or once more in this one.
    pub async fn write(self, states: Vec<State>) -> Result<Acknowledgement> {
        let result = self.write_all(states).await;
        let order = self.order;
        result.map_err(|e| {
            e.during("write a part of").at(format!(
                "{} (subtask {} of {})",
                order.directory, order.subtask, order.operator
            ))
        })
    }

    async fn write_all(&self, states: Vec<State>) -> Result<Acknowledgement> {
        self.check_time()?;
        check_states(&states, self.order.max_parallelism)?;
        let duplicated = self.duplicate().await?;
        let there = self.look().await?;
        let nonce = clock::random_id();
        let from_bytes = self.options.list_uploads_from_bytes;
        let lists = UploadLists::new(self.stores, self.order, nonce, from_bytes);
        let mut written = Vec::with_capacity(states.len());
        let mut contents = Vec::new();
        for state in states {
            let mut files = Vec::with_capacity(state.files.len());
            for file in state.files {
                files.push((u32::try_from(contents.len()).unwrap_or(u32::MAX), file.name));
                contents.push((file.scope, file.from));
            }
            written.push(AcknowledgedState {
                name: state.name,
                partition: state.partition,
                files,
                inline: state.inline.map(|b| ManifestState::encode_inline(&b)),
            });
        }
        let files = futures::stream::iter((0u64..).zip(contents))
            .map(|(number, (scope, from))| {
                let name = names::file(&self.order.attempt, nonce, number);
                let file = self.one(name, scope, from, &there, &lists);
                async move { Ok((number, file.await?)) }
            })
            // In no order: a file that takes long must not hold up those after it.
            .buffer_unordered(self.options.files_at_once.max(1))
            .try_collect()
            .await;
        // Also of a part that failed: the next attempt will be glad of it.
        lists.flush().await;
        let mut files: Vec<(u64, AcknowledgedFile)> = files?;
        files.sort_unstable_by_key(|(number, _)| *number);
        let files: Vec<AcknowledgedFile> = files.into_iter().map(|(_, file)| file).collect();
        self.check_time()?;
        Ok(Acknowledgement {
            version: ORDER_VERSION,
            attempt: self.order.attempt.clone(),
            operator: self.order.operator.clone(),
            subtask: self.order.subtask,
            files,
            states: written,
            duplicated,
        })
    }

    /// Nothing is begun or acknowledged that could not be committed any more.
    fn check_time(&self) -> Result<()> {
        match now() < self.order.deadline_unix_ms {
            true => Ok(()),
            false => Err(Error::refused("the time of this attempt is up")
                .hint("wait for the coordinator's next attempt")),
        }
    }

    /// The duplicates that are this subtask's to make; those that an earlier attempt has made are found.
    async fn duplicate(&self) -> Result<Vec<Location>> {
        let order = self.order;
        // What is for a user shares nothing, and has no use for them.
        if order.duplicates.is_empty() || order.kind == ManifestKind::Savepoint {
            return Ok(Vec::new());
        }
        let id = format!(
            "duplicates-{}",
            names::subtask_name(&order.operator, order.subtask)
        );
        let journal = Arc::new(Journal::open(self.stores, &order.home, &id).await?);
        execute(
            self.stores,
            &order.duplicates,
            &journal,
            &ExecuteOptions::default(),
            &Silent,
            &self.options.upload.cancel,
        )
        .await?;
        let made = order.duplicates.iter().map(|task| task.destination.clone());
        Ok(made.collect())
    }

    /// What can be referred to instead of uploading it.
    async fn look(&self) -> Result<There> {
        let mut there = There::default();
        if self.order.kind == ManifestKind::Savepoint {
            return Ok(there);
        }
        for reusable in &self.order.reusable {
            there.add(reusable.file.clone(), ManifestScope::Shared, Origin::Reused);
            there.reusable.insert(reusable.file.clone());
        }
        if self.order.look_for_uploads {
            for (file, scope) in earlier_uploads(self.stores, self.order).await? {
                there.add(file, scope, Origin::Unconfirmed);
            }
        }
        Ok(there)
    }

    async fn one(
        &self,
        name: String,
        scope: ManifestScope,
        from: FileSource,
        there: &There,
        lists: &UploadLists<'_>,
    ) -> Result<AcknowledgedFile> {
        let content = match from {
            FileSource::There(file) => return self.reuse(file, there),
            FileSource::Content(content) => content,
        };
        self.options.upload.cancel.check()?;
        let (size, digest) = (content.size(), content.sha256());
        if let Some(file) = self.find(size.await?, digest, scope, there).await? {
            return Ok(file);
        }
        let folder = match scope {
            ManifestScope::Shared if self.order.kind == ManifestKind::Checkpoint => {
                names::shared(&self.order.home)?
            }
            // A snapshot for a user has everything in its own folder.
            _ => self.order.directory.clone(),
        };
        let location = folder.join(&name)?;
        let upload = self.stores.upload(&location, content, &self.options.upload);
        let done = upload.await?;
        let file = FileRef {
            location,
            size: done.size,
            sha256: done.sha256,
        };
        lists.add(&file, scope).await;
        Ok(AcknowledgedFile {
            file,
            scope: match self.order.kind {
                ManifestKind::Checkpoint => scope,
                ManifestKind::Savepoint => ManifestScope::Exclusive,
            },
            origin: Origin::Uploaded,
        })
    }

    fn reuse(&self, file: FileRef, there: &There) -> Result<AcknowledgedFile> {
        if self.order.kind == ManifestKind::Savepoint {
            return Err(
                Error::invalid("a savepoint shares no file with any other snapshot")
                    .at(&file.location)
                    .hint("hand over the content of the file"),
            );
        }
        match there.reusable.contains(&file) {
            true => Ok(AcknowledgedFile {
                file,
                scope: ManifestScope::Shared,
                origin: Origin::Reused,
            }),
            false => Err(
                Error::invalid("this file is not among those that may be referred to")
                    .at(&file.location)
                    .hint("refer to files of SubtaskOrder::reusable, or hand over the content"),
            ),
        }
    }

    /// A file that is there and has this very content, whose digest is asked for only if one has its size.
    async fn find(
        &self,
        size: Option<u64>,
        digest: impl Future<Output = Result<Option<Sha256Sum>>> + Send,
        scope: ManifestScope,
        there: &There,
    ) -> Result<Option<AcknowledgedFile>> {
        let Some(size) = size else {
            return Ok(None);
        };
        let of_size = there.by_size.get(&size).into_iter().flatten();
        let candidates: Vec<_> = of_size.filter(|(_, of, _)| *of == scope).collect();
        if candidates.is_empty() {
            return Ok(None);
        }
        let Some(sha256) = digest.await? else {
            return Ok(None);
        };
        for (file, scope, origin) in candidates {
            if file.sha256 != sha256 {
                continue;
            }
            // A clean may have taken what no snapshot refers to.
            if *origin == Origin::Unconfirmed {
                match self.stores.find(&file.location).await? {
                    Some(stat) if stat.size == size => {}
                    _ => continue,
                }
            }
            return Ok(Some(AcknowledgedFile {
                file: file.clone(),
                scope: *scope,
                origin: *origin,
            }));
        }
        Ok(None)
    }

    /// The request to stop.
    pub fn cancel(&self) -> &Cancel {
        &self.options.upload.cancel
    }
}

fn check_states(states: &[State], max_parallelism: u32) -> Result<()> {
    for state in states {
        assemble::check_partition(&state.name, state.partition, max_parallelism)?;
        let names = state.files.iter().map(|file| file.name.as_str());
        assemble::check_file_names(&state.name, names)?;
    }
    let inlined = states.iter().filter_map(|s| s.inline.as_ref());
    let bytes: usize = inlined.map(|b| b.len()).sum();
    if bytes > INLINE_LIMIT_BYTES {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{bytes} bytes for the manifest, where {INLINE_LIMIT_BYTES} are allowed for a subtask"),
        )
        .hint("write them as a file"));
    }
    Ok(())
}
