//! Writing what passes through this process: whole objects and parts of uploads, each with a checksum
//! that the service checks.

use bytes::Bytes;
use http::Method as HttpMethod;
use http::header::{HeaderValue, IF_NONE_MATCH};
use object_store::client::HttpRequest;

use crate::error::Result;

use super::super::checksum::{Md5Sum, Sums};
use super::super::http::{Asking, Attempt, Wire, answered_badly, encode_part, upload_patience};
use super::super::location::Location;
use super::super::stat::{Put, Stat};
use super::bucket::S3Bucket;

impl S3Bucket {
    fn upload(&self, key: &str, query: &str, bytes: &Bytes, sum: Md5Sum) -> Result<HttpRequest> {
        let mut request = self.request(HttpMethod::PUT, key, query)?;
        request.headers_mut().insert("content-md5", sum.header()?);
        *request.body_mut() = bytes.clone().into();
        Ok(request)
    }

    /// Writes an object, whose sums are these, in one request.
    pub(crate) async fn put(
        &self,
        wire: Wire<'_>,
        at: &Location,
        bytes: &Bytes,
        sums: Sums,
        create_only: bool,
    ) -> Result<Put> {
        let size = bytes.len() as u64;
        let outcome = wire.ask(
            Asking {
                operation: "write",
                at,
                patience: upload_patience(size),
            },
            |_| async move {
                let mut request = self.upload(at.key(), "", bytes, sums.md5)?;
                let headers = request.headers_mut();
                if create_only {
                    headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
                }
                for (name, value) in self.encryption() {
                    headers.insert(name, value.clone());
                }
                self.signed_over(request, Some(sums.sha256)).await
            },
            move |answer, uncertain| async move {
                match answer.status {
                    200 => Attempt::Done(Put::Written(Stat {
                        size,
                        tag: answer.header("etag").map(str::to_string),
                        version: answer.header("x-amz-version-id").map(str::to_string),
                        ..Stat::default()
                    })),
                    412 if create_only => Attempt::Done(Put::Taken { uncertain }),
                    _ => answered_badly(&answer, "write", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// Writes one part of an upload and returns its ETag. One request.
    pub(crate) async fn upload_part(
        &self,
        wire: Wire<'_>,
        at: &Location,
        id: &str,
        number: u32,
        bytes: &Bytes,
    ) -> Result<String> {
        const DOING: &str = "write a part of";
        let query = &format!("partNumber={number}&uploadId={}", encode_part(id));
        let sums = Sums::of(bytes).await?;
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: upload_patience(bytes.len() as u64),
            },
            |_| async move {
                let request = self.upload(at.key(), query, bytes, sums.md5)?;
                self.signed_over(request, Some(sums.sha256)).await
            },
            move |answer, _| async move {
                match (answer.status, answer.header("etag")) {
                    (200, Some(tag)) => Attempt::Done(tag.to_string()),
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}
