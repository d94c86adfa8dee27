//! Google Cloud Storage: the JSON API's rewrite, called again with its token until it is done.
//!
//! Source of the rules: the page "Objects: rewrite" of Google's JSON API reference.

use std::fmt;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method as HttpMethod, Request};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

use super::duplicate::{Copied, CopyOrder};
use super::errors;
use super::http::{Answer, Attempt, Wire, answered_badly, encode_part, patience, with_retries};
use super::method::Method;
use super::options::Options;

const DEFAULT_ENDPOINT: &str = "https://storage.googleapis.com";
/// A rewrite that neither ends nor moves on is stopped after this many calls. At Google's
/// smallest step of 1 MiB a call this would be a 1 TiB object.
const MAX_CALLS: u32 = 1_000_000;

/// One bucket: object_store's client, and what our own requests need besides.
pub(crate) struct GcsBucket {
    pub(crate) store: GoogleCloudStorage,
    endpoint: String,
    bucket: String,
}

impl fmt::Debug for GcsBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcsBucket")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

/// A service account that signs nothing: what emulators take.
fn emulator_account(endpoint: &str) -> String {
    serde_json::json!({
        "gcs_base_url": endpoint,
        "disable_oauth": true,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    })
    .to_string()
}

impl GcsBucket {
    /// Makes the client for `bucket` from the `GOOGLE_*` settings and `STORAGE_EMULATOR_HOST`.
    pub(crate) fn open(
        bucket: &str,
        options: &Options,
        client: object_store::ClientOptions,
        retry: object_store::RetryConfig,
    ) -> Result<GcsBucket> {
        let fail = |e| errors::from_client(e, "open", format!("gs://{bucket}"));
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_client_options(client)
            .with_retry(retry);
        for (name, value) in options.with_prefix("GOOGLE_") {
            if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_bucket_name(bucket);
        let mut endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
        if let Some(host) = options.get("STORAGE_EMULATOR_HOST") {
            let url = if host.contains("://") {
                host.to_string()
            } else {
                format!("http://{host}")
            };
            builder = builder.with_service_account_key(emulator_account(&url));
            endpoint = Some(url);
        }
        let endpoint = endpoint
            .or_else(|| {
                let key = builder.get_config_value(&GoogleConfigKey::ServiceAccountKey)?;
                let account: serde_json::Value = serde_json::from_str(&key).ok()?;
                Some(account.get("gcs_base_url")?.as_str()?.to_string())
            })
            .unwrap_or_else(|| DEFAULT_ENDPOINT.to_string());
        let endpoint = endpoint.trim_end_matches('/').to_string();
        if endpoint.starts_with("http://") {
            builder = builder.with_config(
                GoogleConfigKey::Client(object_store::ClientConfigKey::AllowHttp),
                "true",
            );
        }
        Ok(GcsBucket {
            store: builder.build().map_err(fail)?,
            endpoint,
            bucket: bucket.to_string(),
        })
    }

    async fn rewrite_request(
        &self,
        from: &GcsBucket,
        order: &CopyOrder<'_>,
        token: Option<&str>,
    ) -> Result<HttpRequest> {
        let mut url = format!(
            "{}/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}?alt=json",
            self.endpoint,
            encode_part(&from.bucket),
            encode_part(order.source.key()),
            encode_part(&self.bucket),
            encode_part(order.destination.key()),
        );
        if order.create_only {
            url.push_str("&ifGenerationMatch=0");
        }
        // Generations are numbers; an ETag would not be a precondition of this API.
        if let Some(generation) = order
            .source_tag
            .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        {
            url.push_str("&ifSourceGenerationMatch=");
            url.push_str(generation);
        }
        if let Some(token) = token {
            url.push_str("&rewriteToken=");
            url.push_str(&encode_part(token));
        }
        let mut request = Request::builder()
            .method(HttpMethod::POST)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            // An empty resource: the metadata of the source is kept.
            .body("{}".to_string().into())
            .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
        self.authorize(&mut request).await?;
        Ok(request)
    }

    async fn authorize(&self, request: &mut HttpRequest) -> Result<()> {
        let credential = self
            .store
            .credentials()
            .get_credential()
            .await
            .map_err(|e| {
                errors::from_client(e, "sign a request for", format!("gs://{}", self.bucket))
            })?;
        if !credential.bearer.is_empty() {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", credential.bearer))
                .map_err(|_| Error::new(ErrorKind::Denied, "the access token is malformed"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(())
    }

    /// Is the bucket there? One listing of at most one object; the right to list is not needed for
    /// anything else, so its absence is no answer.
    pub(crate) async fn check(&self, wire: Wire<'_>, at: &super::Location) -> Result<()> {
        let outcome = with_retries(|_| async move {
            let request = async {
                let url = format!(
                    "{}/storage/v1/b/{}/o?maxResults=1&fields=kind",
                    self.endpoint,
                    encode_part(&self.bucket)
                );
                let mut request = Request::builder()
                    .method(HttpMethod::GET)
                    .uri(url)
                    .body(HttpRequestBody::empty())
                    .map_err(|e| Error::invalid(e.to_string()).at(at))?;
                self.authorize(&mut request).await?;
                Ok(request)
            };
            wire.attempt(request, patience(0), "look at", at, |answer| async move {
                match answer.status {
                    200 | 401 | 403 => Attempt::Done(()),
                    404 => Attempt::Failed(errors::missing_bucket_error("look at", at)),
                    _ => answered_badly(&answer, "look at", at),
                }
            })
            .await
        });
        outcome.await.map(|o| o.value)
    }

    /// Copies one object of `from` into this bucket. One call where location and class are
    /// equal; else as many as the service asks for.
    pub(crate) async fn copy(
        &self,
        wire: Wire<'_>,
        from: &GcsBucket,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let mut token: Option<String> = None;
        let mut attempts = 0;
        for _ in 0..MAX_CALLS {
            order.cancel.check()?;
            let known = token.as_deref();
            let step = with_retries(|uncertain_before| async move {
                wire.attempt(
                    self.rewrite_request(from, order, known),
                    patience(order.size),
                    "copy to",
                    order.destination,
                    |answer| async move { self.judge(&answer, order, uncertain_before).await },
                )
                .await
            })
            .await?;
            attempts += step.attempts;
            match step.value {
                Step::Done(copied) => return Ok(Copied { attempts, ..copied }),
                Step::Continue(next) => token = Some(next),
            }
        }
        Err(
            Error::new(ErrorKind::Unavailable, "the rewrite does not end")
                .during("copy to")
                .at(order.destination),
        )
    }

    async fn judge(
        &self,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Step> {
        match answer.status {
            200 => match serde_json::from_slice::<RewriteResponse>(&answer.body) {
                Ok(RewriteResponse {
                    done: true,
                    resource: Some(object),
                    ..
                }) => Attempt::Done(Step::Done(Copied::new(
                    Method::GcsRewrite,
                    object.generation,
                ))),
                Ok(RewriteResponse {
                    done: false,
                    rewrite_token: Some(token),
                    ..
                }) => Attempt::Done(Step::Continue(token)),
                _ => answered_badly(answer, "copy to", order.destination),
            },
            412 => match order
                .after_refusal(&self.store, Method::GcsRewrite, uncertain_before)
                .await
            {
                Attempt::Done(copied) => Attempt::Done(Step::Done(copied)),
                Attempt::Failed(e) => Attempt::Failed(e),
                Attempt::Again(again) => Attempt::Again(again),
            },
            404 => Attempt::Failed(errors::from_answer(404, &answer.body, "copy", order.source)),
            _ => answered_badly(answer, "copy to", order.destination),
        }
    }
}

enum Step {
    Done(Copied),
    Continue(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RewriteResponse {
    done: bool,
    rewrite_token: Option<String>,
    resource: Option<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    generation: Option<String>,
}
