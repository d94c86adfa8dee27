//! Uploads that were begun and neither completed nor aborted: they cost money and no listing of objects
//! shows them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};

use super::location::Location;
use super::open::{Backend, Stores};

/// One upload that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// The object that it would make.
    pub destination: Location,
    /// The service's name for it.
    pub id: String,
    /// When it was begun, if the service says so.
    pub begun: Option<SystemTime>,
}

impl OpenUpload {
    /// How long ago it was begun.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.begun?).ok()
    }
}

/// `2026-01-02T03:04:05.000Z` and its like.
fn parse_time(text: &str) -> Option<SystemTime> {
    let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
    let millis = u64::try_from(time.timestamp_millis()).ok()?;
    Some(UNIX_EPOCH + Duration::from_millis(millis))
}

impl Stores {
    /// The open uploads to the object or the folder `folder` and below. One request per 1,000 with such a beginning.
    ///
    /// # Errors
    ///
    /// `Unsupported` for stores other than S3: a resumable upload to Google and the blocks of an Azure
    /// blob are gone a week after the last byte, and cannot be listed; on local disk nothing is left.
    pub async fn open_uploads(&self, folder: &Location) -> Result<Vec<OpenUpload>> {
        let store = self.open(folder)?;
        let Backend::S3(s3) = &store.backend else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "only S3 keeps open uploads; other stores forget them within a week, or leave none",
            )
            .during("list the uploads of")
            .at(folder));
        };
        let prefix = match folder.key() {
            "" => String::new(),
            key => format!("{}/", key.trim_end_matches('/')),
        };
        let own = prefix.trim_end_matches('/');
        let found = s3.uploads_below(self.wire(&store)?, folder, own).await?;
        found
            .into_iter()
            .filter(|(key, ..)| key == own || key.starts_with(&prefix))
            .map(|(key, id, begun)| {
                Ok(OpenUpload {
                    destination: match key.strip_prefix(&prefix) {
                        Some(below) => folder.join(below)?,
                        None => folder.clone(),
                    },
                    id,
                    begun: begun.as_deref().and_then(parse_time),
                })
            })
            .collect()
    }

    /// Ends an upload without an object. Two requests.
    ///
    /// # Errors
    ///
    /// `Unavailable` if parts keep coming: somebody is still writing them.
    pub async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let store = self.open(&upload.destination)?;
        match &store.backend {
            Backend::S3(s3) => {
                s3.abort_upload(self.wire(&store)?, &upload.destination, &upload.id)
                    .await
            }
            _ => Ok(()),
        }
    }
}
