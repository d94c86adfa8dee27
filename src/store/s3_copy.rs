//! S3: one CopyObject with conditions, whose answer is read to the end.
//!
//! object_store's own copy takes a `200 OK` with an error in its body for success, cannot cross
//! buckets, pins no source and returns nothing; so the request here is our own, signed with the
//! store's credentials.
//! Source of the rules: the CopyObject page of the S3 API reference.

use std::fmt;

use http::header::{HeaderName, HeaderValue};
use http::{Method as HttpMethod, Request};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use serde::Deserialize;

use crate::error::{Error, Result};

use super::duplicate::{Copied, CopyOrder};
use super::errors;
use super::http::{
    Answer, Attempt, answered_badly, encode_key, patience, send, unanswered, with_retries,
};
use super::method::Method;
use super::options::Options;

/// One bucket: object_store's client, and what our own requests need besides.
pub(crate) struct S3Bucket {
    pub(crate) store: AmazonS3,
    /// URL of the bucket, without a trailing slash.
    endpoint: String,
    region: String,
    bucket: String,
    request_payer: bool,
    skip_signature: bool,
    /// Encryption headers for objects we write, from the `AWS_SERVER_SIDE_ENCRYPTION` settings.
    encryption: Vec<(HeaderName, HeaderValue)>,
    /// Customer-provided keys: copies go through object_store's client instead.
    pub(crate) customer_keys: bool,
}

impl fmt::Debug for S3Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Bucket")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl S3Bucket {
    /// Makes the client for `bucket` from the `AWS_*` settings.
    pub(crate) fn open(
        bucket: &str,
        options: &Options,
        client: object_store::ClientOptions,
        retry: object_store::RetryConfig,
    ) -> Result<S3Bucket> {
        let fail = |e| errors::from_client(e, "open", format!("s3://{bucket}"));
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_retry(retry);
        for (name, value) in options.with_prefix("AWS_") {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_bucket_name(bucket);
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .iter()
            .find_map(|name| options.get(name));
        // An endpoint that says http was meant as it was written.
        if endpoint.is_some_and(|e| e.starts_with("http://")) {
            builder = builder.with_allow_http(true);
        }
        let setting = |key| builder.get_config_value(&key);
        let is_on = |key| setting(key).is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let region = setting(AmazonS3ConfigKey::Region)
            .or_else(|| options.get("AWS_DEFAULT_REGION").map(str::to_string))
            .unwrap_or_else(|| "us-east-1".to_string());
        let virtual_hosted = is_on(AmazonS3ConfigKey::VirtualHostedStyleRequest);
        let endpoint = match (endpoint, virtual_hosted) {
            (Some(url), true) => url.trim_end_matches('/').to_string(),
            (Some(url), false) => format!("{}/{bucket}", url.trim_end_matches('/')),
            (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
            (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
        };
        let encryption_name = options.get("AWS_SERVER_SIDE_ENCRYPTION").unwrap_or("");
        let mut encryption = Vec::new();
        if !encryption_name.is_empty() && encryption_name != "sse-c" {
            for (header, value) in [
                ("x-amz-server-side-encryption", Some(encryption_name)),
                (
                    "x-amz-server-side-encryption-aws-kms-key-id",
                    options.get("AWS_SSE_KMS_KEY_ID"),
                ),
                (
                    "x-amz-server-side-encryption-bucket-key-enabled",
                    options.get("AWS_SSE_BUCKET_KEY_ENABLED"),
                ),
            ] {
                if let Some(value) = value {
                    let value = HeaderValue::from_str(value).map_err(|_| {
                        Error::invalid("an encryption setting holds characters that no header can")
                    })?;
                    encryption.push((HeaderName::from_static(header), value));
                }
            }
        }
        Ok(S3Bucket {
            endpoint,
            region,
            bucket: bucket.to_string(),
            request_payer: is_on(AmazonS3ConfigKey::RequestPayer),
            skip_signature: is_on(AmazonS3ConfigKey::SkipSignature),
            encryption,
            customer_keys: encryption_name == "sse-c",
            store: builder.build().map_err(fail)?,
        })
    }

    async fn signed(&self, mut request: HttpRequest) -> Result<HttpRequest> {
        if self.skip_signature {
            return Ok(request);
        }
        let fail =
            |e| errors::from_client(e, "sign a request for", format!("s3://{}", self.bucket));
        // Asked for anew at each attempt: credentials that refresh themselves stay fresh.
        let credential = self
            .store
            .credentials()
            .get_credential()
            .await
            .map_err(fail)?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .with_request_payer(self.request_payer)
            .try_authorize(&mut request, None)
            .map_err(fail)?;
        Ok(request)
    }

    fn copy_request(&self, from: &S3Bucket, order: &CopyOrder<'_>) -> Result<HttpRequest> {
        let bad_header =
            |_| Error::invalid("a tag holds characters that no header can").at(order.source);
        let url = format!("{}/{}", self.endpoint, encode_key(order.destination.key()));
        let mut request = Request::builder()
            .method(HttpMethod::PUT)
            .uri(url)
            .body(HttpRequestBody::empty())
            .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
        let headers = request.headers_mut();
        let source = format!("/{}/{}", from.bucket, encode_key(order.source.key()));
        headers.insert(
            "x-amz-copy-source",
            HeaderValue::from_str(&source).map_err(bad_header)?,
        );
        if let Some(tag) = order.source_tag {
            headers.insert(
                "x-amz-copy-source-if-match",
                HeaderValue::from_str(tag).map_err(bad_header)?,
            );
        }
        if order.create_only {
            headers.insert(http::header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        for (name, value) in &self.encryption {
            headers.insert(name, value.clone());
        }
        Ok(request)
    }

    /// Copies one object of `from` into this bucket. One request when nothing goes wrong.
    pub(crate) async fn copy(
        &self,
        http: &HttpClient,
        from: &S3Bucket,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let outcome = with_retries(async |_, uncertain_before| {
            let request = match self.copy_request(from, order) {
                Ok(request) => self.signed(request).await,
                Err(e) => Err(e),
            };
            let request = match request {
                Ok(request) => request,
                Err(e) => return Attempt::Failed(e),
            };
            let answer = match send(http, request, patience(order.size)).await {
                Ok(answer) => answer,
                Err(why) => return unanswered(why, "copy to", order.destination),
            };
            self.judge(from, &answer, order, uncertain_before).await
        })
        .await?;
        Ok(Copied {
            attempts: outcome.attempts,
            ..outcome.value
        })
    }

    async fn judge(
        &self,
        from: &S3Bucket,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        if answer.status == 200
            && let Some(tag) = copy_result_tag(&answer.body)
        {
            return Attempt::Done(Copied::new(Method::S3Copy, Some(tag)));
        }
        // Also inside a 200: a copy may fail after the first line of the answer was sent.
        if answer.status == 412 || errors::says_condition_failed(&answer.body) {
            return match order
                .explain_refusal(&from.store, &self.store, uncertain_before)
                .await
            {
                Ok(there) => Attempt::Done(Copied::new(Method::S3Copy, there.e_tag)),
                Err(e) => Attempt::Failed(e),
            };
        }
        if answer.status == 404 {
            return Attempt::Failed(
                errors::from_answer(404, &answer.body, "copy", order.source).at(order.source),
            );
        }
        answered_badly(answer, "copy to", order.destination)
    }
}

#[derive(Deserialize)]
struct CopyObjectResult {
    #[serde(rename = "ETag")]
    e_tag: String,
}

/// The ETag in a CopyObjectResult; `None` for anything else, above all for an `Error` document.
fn copy_result_tag(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    if !text.contains("<CopyObjectResult") {
        return None;
    }
    let result: CopyObjectResult = quick_xml::de::from_str(text.trim_start()).ok()?;
    (!result.e_tag.is_empty()).then_some(result.e_tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_copy_result_counts_as_success() {
        let result = b"<?xml version=\"1.0\"?>\n<CopyObjectResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LastModified>x</LastModified><ETag>&quot;abc&quot;</ETag></CopyObjectResult>";
        assert_eq!(copy_result_tag(result).as_deref(), Some("\"abc\""));
        assert_eq!(
            copy_result_tag(b"<Error><Code>AccessDenied</Code></Error>"),
            None
        );
        assert_eq!(copy_result_tag(b""), None);
        assert_eq!(copy_result_tag(b"<CopyObjectResult>"), None);
    }
}
