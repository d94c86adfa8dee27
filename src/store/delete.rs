//! Many deletions at once, by explicit keys, in the batches that each service takes.

use futures::StreamExt;

use crate::error::{Error, ErrorKind, Result};

use super::location::{Location, Provider};
use super::open::Stores;
use super::{errors, local};

/// Keys of one DeleteObjects request. Source: the page DeleteObjects of the S3 API reference.
const S3_KEYS_PER_REQUEST: usize = 1_000;
/// Blobs of one batch request. Source: the page Blob Batch of Azure's REST API reference.
const AZURE_KEYS_PER_REQUEST: usize = 256;
/// Fewer keys than these are not worth a request of their own.
const KEYS_WORTH_A_REQUEST: usize = 64;
/// Batch requests under way at once.
const BATCHES_IN_FLIGHT: usize = 16;
/// Single requests under way at once, where a service has no batches.
const SINGLE_IN_FLIGHT: usize = 32;
/// Local files per task of a worker thread.
const FILES_PER_TASK: usize = 256;

impl Stores {
    /// Removes objects of one bucket, named one by one; one that is not there is fine. The outcome
    /// of each, in no particular order: a failure of one is no reason not to try the others.
    ///
    /// One request per 1,000 objects on S3 and per 256 on Azure, sixteen under way at once; fewer than sixteen full
    /// ones are spread over as many smaller ones of at least 64 objects. One per object elsewhere, and on
    /// services that refuse batches, 32 under way at once.
    pub async fn delete_all(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)> {
        let Some(first) = objects.first() else {
            return Vec::new();
        };
        let per_request = match first.provider() {
            Provider::S3 => S3_KEYS_PER_REQUEST,
            Provider::Azure => AZURE_KEYS_PER_REQUEST,
            Provider::Local => FILES_PER_TASK,
            _ => return self.delete_singly(objects).await,
        };
        // Some services delete the keys of a batch one after the other: few objects are spread over all the
        // requests that may be under way.
        let spread = objects.len().div_ceil(BATCHES_IN_FLIGHT);
        let per_request = per_request.min(spread.max(KEYS_WORTH_A_REQUEST));
        let mut batches = Vec::with_capacity(objects.len() / per_request + 1);
        let mut rest = objects.into_iter().peekable();
        while rest.peek().is_some() {
            batches.push(rest.by_ref().take(per_request).collect::<Vec<_>>());
        }
        let done: Vec<Vec<(Location, Result<()>)>> = futures::stream::iter(batches)
            .map(|batch| self.delete_batch(batch))
            .buffer_unordered(BATCHES_IN_FLIGHT)
            .collect()
            .await;
        done.into_iter().flatten().collect()
    }

    async fn delete_singly(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)> {
        futures::stream::iter(objects)
            .map(|at| async move {
                let result = self.delete(&at).await;
                (at, result)
            })
            .buffer_unordered(SINGLE_IN_FLIGHT)
            .collect()
            .await
    }

    async fn delete_batch(&self, batch: Vec<Location>) -> Vec<(Location, Result<()>)> {
        let store = match batch.first().map(|at| self.open(at)) {
            Some(Ok(store)) => store,
            // The same error for each, which is what each would have met.
            _ => return self.delete_singly(batch).await,
        };
        let Some(objects) = store.objects() else {
            return delete_files(batch).await;
        };
        let mut paths = Vec::with_capacity(batch.len());
        for at in &batch {
            match at.object_path() {
                // The client would ask for another key than this one.
                Ok(path) if path.as_ref() == at.key() => paths.push(path),
                _ => return self.delete_singly(batch).await,
            }
        }
        let asked = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        // Answers come in the order of the keys; a request that fails as a whole has one answer.
        let answers: Vec<_> = objects.delete_stream(asked).collect().await;
        if answers.len() != batch.len() {
            let refused = answers.into_iter().find_map(std::result::Result::err);
            let at = batch.first().cloned();
            let error = match (refused, at) {
                (Some(e), Some(at)) => errors::from_client(e, "delete", at),
                _ => Error::new(
                    ErrorKind::Unavailable,
                    "the service answered for fewer objects",
                ),
            };
            return match error.kind() {
                // No right to delete, or nobody there: the same for each.
                ErrorKind::Denied | ErrorKind::NotFound => batch
                    .into_iter()
                    .map(|at| {
                        let e = Error::new(error.kind(), error.message().to_string());
                        (at.clone(), Err(e.during("delete").at(at)))
                    })
                    .collect(),
                _ => {
                    tracing::debug!(%error, "a batch was refused; its objects are deleted singly");
                    self.delete_singly(batch).await
                }
            };
        }
        batch
            .into_iter()
            .zip(answers)
            .map(|(at, answer)| {
                let result = match answer.map_err(|e| errors::from_client(e, "delete", &at)) {
                    Err(e) if !errors::is_missing_object(&e) => Err(e),
                    _ => Ok(()),
                };
                (at, result)
            })
            .collect()
    }
}

async fn delete_files(batch: Vec<Location>) -> Vec<(Location, Result<()>)> {
    let outcomes = super::blocking(move || {
        Ok(batch
            .into_iter()
            .map(|at| {
                let result = match local::delete(&at) {
                    Err(e) if !errors::is_missing_object(&e) => Err(e),
                    _ => Ok(()),
                };
                (at, result)
            })
            .collect::<Vec<_>>())
    });
    // Empty if the runtime is broken: then no outcome is known, and none is claimed.
    outcomes.await.unwrap_or_default()
}
