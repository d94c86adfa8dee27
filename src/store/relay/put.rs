//! Small objects, written whole in one request.

use std::sync::Arc;

use bytes::Bytes;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};

use crate::error::{Error, ErrorKind, Result};

use super::super::checksum::Sums;
use super::super::digest::{RunningSha256, Sha256Sum};
use super::super::location::Location;
use super::super::open::{Backend, Stores};
use super::super::stat::{Put, Stat};
use super::super::{errors, local};

impl Stores {
    /// Writes a small object whole, visible at once or not at all, with a checksum that the service
    /// checks. One request. With `create_only` an existing object is left and reported, unless it has
    /// this very content: then it counts as written, for the reply to an earlier attempt may have been
    /// lost.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if `create_only` and something else is there.
    pub async fn put(&self, at: &Location, bytes: Bytes, create_only: bool) -> Result<Stat> {
        let put = self.try_put(at, &bytes, create_only).await?;
        self.written(at, &bytes, put).await
    }

    /// Writes a small object where there is none, and says whether it did. False: something is there, perhaps our own of
    /// an attempt whose reply was lost; the caller looks. One request.
    pub(crate) async fn put_if_absent(&self, at: &Location, bytes: Bytes) -> Result<bool> {
        match self.try_put(at, &bytes, true).await {
            Ok(put) => Ok(matches!(put, Put::Written(_))),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Writes an object as [`Stores::put`] does, where there is none, and returns its digest, which is computed
    /// once: S3 is told it, and elsewhere it is computed while the bytes are sent.
    pub(in super::super) async fn put_new(&self, at: &Location, bytes: Bytes) -> Result<Sha256Sum> {
        let store = self.open(at)?;
        if let Backend::S3(s3) = &store.backend
            && !s3.customer_keys
        {
            let sums = Sums::of(&bytes).await?;
            let put = s3.put(self.wire(&store)?, at, &bytes, sums, true).await?;
            self.written(at, &bytes, put).await?;
            return Ok(sums.sha256);
        }
        let (put, running) = tokio::join!(
            self.put(at, bytes.clone(), true),
            RunningSha256::default().feed(&bytes)
        );
        put?;
        Ok(running?.sum())
    }

    /// What a write came to: what is there already may be ours.
    async fn written(&self, at: &Location, bytes: &Bytes, put: Put) -> Result<Stat> {
        match put {
            Put::Written(stat) => Ok(stat),
            Put::Taken { .. } => match self.stat(at).await? {
                there
                    if there.size == bytes.len() as u64
                        && self.read(at, there.size).await? == *bytes =>
                {
                    Ok(there)
                }
                _ => Err(
                    Error::new(ErrorKind::AlreadyExists, "an object is already there")
                        .during("write")
                        .at(at),
                ),
            },
        }
    }

    /// The same, without a look at what is there.
    pub(super) async fn try_put(
        &self,
        at: &Location,
        bytes: &Bytes,
        create_only: bool,
    ) -> Result<Put> {
        let store = self.open(at)?;
        match (&store.backend, store.objects()) {
            (Backend::S3(s3), _) if !s3.customer_keys => {
                let sums = Sums::of(bytes).await?;
                s3.put(self.wire(&store)?, at, bytes, sums, create_only)
                    .await
            }
            (Backend::Gcs(gcs), _) => gcs.put(self.wire(&store)?, at, bytes, create_only).await,
            (Backend::Azure(azure), _) => {
                azure.put(self.wire(&store)?, at, bytes, create_only).await
            }
            (_, Some(client)) => by_client(client, at, bytes, create_only).await,
            (_, None) => {
                let (at, bytes) = (at.clone(), bytes.clone());
                let put = move || local::put(&at, &bytes, create_only).map(Put::Written);
                super::super::blocking(put).await
            }
        }
    }
}

/// By object_store's own client.
async fn by_client(
    store: &Arc<dyn ObjectStore>,
    at: &Location,
    bytes: &Bytes,
    create_only: bool,
) -> Result<Put> {
    let size = bytes.len() as u64;
    let options = PutOptions {
        mode: if create_only {
            PutMode::Create
        } else {
            PutMode::Overwrite
        },
        ..Default::default()
    };
    let result = store
        .put_opts(
            &at.object_path()?,
            PutPayload::from_bytes(bytes.clone()),
            options,
        )
        .await;
    match result {
        Ok(put) => Ok(Put::Written(Stat {
            size,
            tag: put.e_tag,
            version: put.version,
            ..Stat::default()
        })),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(Put::Taken { uncertain: true }),
        Err(e) => Err(errors::from_client(e, "write", at)),
    }
}
