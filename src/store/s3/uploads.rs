//! Multipart uploads: begin, look into, complete under a condition, abort for good.

use bytes::Bytes;
use http::Method as HttpMethod;
use http::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};
use object_store::client::HttpRequest;

use crate::error::{Error, ErrorKind, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::location::Location;
use super::super::method::Method;
use super::bucket::S3Bucket;
use super::copy::header;
use super::xml::{
    self, CompleteMultipartUploadResult, InitiateMultipartUploadResult, ListMultipartUploadsResult,
    ListPartsResult, ListedPart,
};

/// Parts in flight at an abort may still land after it; then the abort is repeated, so often.
const ABORT_ROUNDS: u32 = 5;

impl S3Bucket {
    /// Begins an upload with the given headers and returns its id. One request.
    pub(crate) async fn begin_upload(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        headers: &HeaderMap,
    ) -> Result<String> {
        let at = order.destination;
        let outcome = wire.ask(
            Asking {
                operation: "begin an upload to",
                at,
                patience: patience(0),
            },
            |_| async move {
                let mut request = self.request(HttpMethod::POST, at.key(), "uploads=")?;
                for (name, value) in headers {
                    request.headers_mut().append(name.clone(), value.clone());
                }
                // What the user set for objects we write is stronger than what the source had.
                for (name, value) in self.encryption() {
                    request.headers_mut().insert(name, value.clone());
                }
                self.signed(request).await
            },
            move |answer, _| async move {
                match xml::parse::<InitiateMultipartUploadResult>(
                    &answer.body,
                    "InitiateMultipartUploadResult",
                ) {
                    Some(result) if answer.status == 200 => Attempt::Done(result.upload_id),
                    _ => answered_badly(&answer, "begin an upload to", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// The parts that an upload has; `None` if there is no such upload. One request per 1,000.
    pub(super) async fn parts(
        &self,
        wire: Wire<'_>,
        at: &Location,
        id: &str,
    ) -> Result<Option<Vec<ListedPart>>> {
        let mut parts = Vec::new();
        let mut marker = 0;
        loop {
            let query = &format!("part-number-marker={marker}&uploadId={}", encode_part(id));
            let page = wire.ask(
                Asking {
                    operation: "list the parts of",
                    at,
                    patience: patience(0),
                },
                |_| async move {
                    self.signed(self.request(HttpMethod::GET, at.key(), query)?)
                        .await
                },
                move |answer, _| async move {
                    match xml::parse::<ListPartsResult>(&answer.body, "ListPartsResult") {
                        Some(listed) if answer.status == 200 => Attempt::Done(Some(listed)),
                        _ if answer.status == 404 => Attempt::Done(None),
                        _ => answered_badly(&answer, "list the parts of", at),
                    }
                },
            );
            let Some(page) = page.await?.value else {
                return Ok(None);
            };
            parts.extend(page.parts);
            match (page.is_truncated, page.next_part_number_marker) {
                (true, Some(next)) if next > marker => marker = next,
                _ => return Ok(Some(parts)),
            }
        }
    }

    /// The ids of the open uploads to exactly this key. One request.
    pub(crate) async fn open_uploads(&self, wire: Wire<'_>, at: &Location) -> Result<Vec<String>> {
        let query = format!("prefix={}&uploads=", encode_part(at.key()));
        let listed = self.uploads_page(wire, at, &query).await?;
        Ok(listed
            .uploads
            .into_iter()
            .filter(|u| u.key == at.key())
            .map(|u| u.upload_id)
            .collect())
    }

    /// The open uploads whose keys begin with `prefix`: key, id, and when they were begun as the service
    /// writes it. One request per 1,000.
    pub(crate) async fn uploads_below(
        &self,
        wire: Wire<'_>,
        at: &Location,
        prefix: &str,
    ) -> Result<Vec<(String, String, Option<String>)>> {
        let mut found = Vec::new();
        let mut query = format!("prefix={}&uploads=", encode_part(prefix));
        loop {
            let page = self.uploads_page(wire, at, &query).await?;
            let more = page.is_truncated.then_some(page.next_key_marker).flatten();
            let got_some = !page.uploads.is_empty();
            let uploads = page.uploads.into_iter();
            found.extend(
                uploads
                    .filter(|u| u.key.starts_with(prefix))
                    .map(|u| (u.key, u.upload_id, u.initiated)),
            );
            match more {
                Some(key) if got_some => {
                    query = format!(
                        "key-marker={}&prefix={}&upload-id-marker={}&uploads=",
                        encode_part(&key),
                        encode_part(prefix),
                        encode_part(page.next_upload_id_marker.as_deref().unwrap_or_default()),
                    );
                }
                _ => return Ok(found),
            }
        }
    }

    async fn uploads_page(
        &self,
        wire: Wire<'_>,
        at: &Location,
        query: &str,
    ) -> Result<ListMultipartUploadsResult> {
        const DOING: &str = "list the uploads of";
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: patience(0),
            },
            |_| async move { self.signed(self.request(HttpMethod::GET, "", query)?).await },
            move |answer, _| async move {
                match xml::parse::<ListMultipartUploadsResult>(
                    &answer.body,
                    "ListMultipartUploadsResult",
                ) {
                    Some(listed) if answer.status == 200 => Attempt::Done(listed),
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// Ends an upload without an object, and looks until no part of it is left. One request and
    /// one look.
    pub(crate) async fn abort_upload(&self, wire: Wire<'_>, at: &Location, id: &str) -> Result<()> {
        let query = &format!("uploadId={}", encode_part(id));
        for _ in 0..ABORT_ROUNDS {
            let outcome = wire.ask(
                Asking {
                    operation: "abort an upload to",
                    at,
                    patience: patience(0),
                },
                |_| async move {
                    self.signed(self.request(HttpMethod::DELETE, at.key(), query)?)
                        .await
                },
                move |answer, _| async move {
                    match answer.status {
                        200 | 204 | 404 => Attempt::Done(()),
                        _ => answered_badly(&answer, "abort an upload to", at),
                    }
                },
            );
            outcome.await?;
            if self
                .parts(wire, at, id)
                .await?
                .is_none_or(|parts| parts.is_empty())
            {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "an aborted upload keeps getting parts",
        )
        .during("abort an upload to")
        .at(at))
    }

    async fn complete_request(
        &self,
        order: &CopyOrder<'_>,
        id: &str,
        parts: &[(u32, String)],
    ) -> Result<HttpRequest> {
        let mut body = String::from("<CompleteMultipartUpload>");
        for (number, tag) in parts {
            let tag = quick_xml::escape::escape(tag);
            body.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
            ));
        }
        body.push_str("</CompleteMultipartUpload>");
        let query = &format!("uploadId={}", encode_part(id));
        let mut request = self.request(HttpMethod::POST, order.destination.key(), query)?;
        *request.body_mut() = Bytes::from(body).into();
        let headers = request.headers_mut();
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/xml"),
        );
        // The service refuses to complete an object of another size.
        headers.insert(
            "x-amz-mp-object-size",
            header(&order.size.to_string(), order)?,
        );
        if order.create_only {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        self.signed(request).await
    }

    /// Makes the object from its parts, under the order's condition. One request.
    pub(crate) async fn complete_upload(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        id: &str,
        parts: &[(u32, String)],
        method: Method,
    ) -> Result<Copied> {
        let outcome = wire.ask(
            Asking {
                operation: "complete",
                at: order.destination,
                patience: patience(order.size),
            },
            |_| self.complete_request(order, id, parts),
            move |answer, uncertain_before| async move {
                self.judge_complete(&answer, order, method, uncertain_before)
                    .await
            },
        );
        outcome.await.map(|o| o.value)
    }

    async fn judge_complete(
        &self,
        answer: &Answer,
        order: &CopyOrder<'_>,
        method: Method,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        let at = order.destination;
        match answer.status {
            200 => match xml::parse::<CompleteMultipartUploadResult>(
                &answer.body,
                "CompleteMultipartUploadResult",
            ) {
                Some(result) if !result.e_tag.is_empty() => {
                    Attempt::Done(Copied::new(method, Some(result.e_tag)))
                }
                _ if errors::says_condition_failed(&answer.body) => {
                    order
                        .after_refusal(&self.store, method, uncertain_before)
                        .await
                }
                _ => answered_badly(answer, "complete", at),
            },
            // The upload is gone: an earlier attempt, whose reply was lost, has completed it.
            404 | 412 if uncertain_before || answer.status == 412 => {
                order
                    .after_refusal(&self.store, method, uncertain_before)
                    .await
            }
            // Another run fills the same upload and has just written a part of it anew.
            400 if errors::says_invalid_part(&answer.body) => Attempt::Failed(
                errors::from_answer(answer.status, &answer.body, "complete", at)
                    .with_kind(ErrorKind::NotFound),
            ),
            // Another writer was faster; the upload cannot be completed any more.
            409 => order.after_refusal(&self.store, method, false).await,
            _ => answered_badly(answer, "complete", at),
        }
    }
}
