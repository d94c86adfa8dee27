//! What a service really does, found out by trying.

use bytes::Bytes;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Cancel;

use super::duplicate::{CopyOrder, Preserve};
use super::location::Location;
use super::open::{Backend, Store, Stores};

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
