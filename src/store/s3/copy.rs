//! CopyObject with conditions, whose answer is read to the end.

use http::Method as HttpMethod;
use http::header::{HeaderName, HeaderValue, IF_NONE_MATCH};
use object_store::client::HttpRequest;

use crate::error::{Error, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, encode_key, patience};
use super::super::method::Method;
use super::bucket::S3Bucket;
use super::xml::{self, CopyResult};

/// A header value, or an error that names the object.
pub(super) fn header(value: &str, order: &CopyOrder<'_>) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| {
        Error::invalid("a property holds characters that no header can").at(order.source)
    })
}

impl S3Bucket {
    /// The headers that name the source of a copy and pin it.
    pub(super) fn add_source(
        &self,
        request: &mut HttpRequest,
        from: &S3Bucket,
        order: &CopyOrder<'_>,
    ) -> Result<()> {
        let source = format!("/{}/{}", from.name(), encode_key(order.source.key()));
        let headers = request.headers_mut();
        headers.insert("x-amz-copy-source", header(&source, order)?);
        if let Some(tag) = order.source_tag {
            headers.insert("x-amz-copy-source-if-match", header(tag, order)?);
        }
        Ok(())
    }

    async fn copy_request(&self, from: &S3Bucket, order: &CopyOrder<'_>) -> Result<HttpRequest> {
        let mut request = self.request(HttpMethod::PUT, order.destination.key(), "")?;
        self.add_source(&mut request, from, order)?;
        if order.create_only {
            request
                .headers_mut()
                .insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        // Without this header the class would be STANDARD.
        if let Some(class) = order.storage_class.filter(|c| *c != "STANDARD") {
            let name = HeaderName::from_static("x-amz-storage-class");
            request.headers_mut().insert(name, header(class, order)?);
        }
        for (name, value) in self.encryption() {
            request.headers_mut().insert(name, value.clone());
        }
        self.signed(request).await
    }

    /// Copies one object of `from` into this bucket. One request when nothing goes wrong.
    pub(crate) async fn copy(
        &self,
        wire: Wire<'_>,
        from: &S3Bucket,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let outcome = wire
            .ask(
                Asking {
                    operation: "copy to",
                    at: order.destination,
                    patience: patience(order.size),
                },
                |_| self.copy_request(from, order),
                move |answer, uncertain_before| async move {
                    self.judge(&answer, order, uncertain_before).await
                },
            )
            .await?;
        Ok(Copied {
            attempts: outcome.attempts,
            ..outcome.value
        })
    }

    async fn judge(
        &self,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        match answer.status {
            200 => match xml::parse::<CopyResult>(&answer.body, "CopyObjectResult") {
                Some(result) if !result.e_tag.is_empty() => {
                    Attempt::Done(Copied::new(Method::S3Copy, Some(result.e_tag)))
                }
                _ if errors::says_condition_failed(&answer.body) => {
                    order
                        .after_refusal(&self.store, Method::S3Copy, uncertain_before)
                        .await
                }
                // The error of a copy that failed after the first line of the answer was sent.
                _ => answered_badly(answer, "copy to", order.destination),
            },
            // Which of the two conditions failed, the answer does not say: look.
            412 => {
                order
                    .after_refusal(&self.store, Method::S3Copy, uncertain_before)
                    .await
            }
            404 => Attempt::Failed(errors::from_answer(404, &answer.body, "copy", order.source)),
            _ => answered_badly(answer, "copy to", order.destination),
        }
    }
}
