//! One bucket: its client, and authorized requests of our own.

use std::fmt;

use http::header::{AUTHORIZATION, HeaderValue};
use http::{Method as HttpMethod, Request};
use object_store::client::{ClientConfigKey, HttpRequest, HttpRequestBody};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};

use crate::error::{Error, ErrorKind, Result};

use super::super::errors;
use super::super::http::{Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::location::Location;
use super::super::options::{Options, check_endpoint, check_name};
use super::super::reach::{Reach, needs_no_certificates};

const DEFAULT_ENDPOINT: &str = "https://storage.googleapis.com";

/// One bucket: object_store's client, and what our own requests need besides.
pub(crate) struct GcsBucket {
    pub(crate) store: GoogleCloudStorage,
    /// URL of the service, without a trailing slash.
    pub(super) endpoint: String,
    pub(super) bucket: String,
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
    pub(crate) fn open(bucket: &str, options: &Options, reach: Reach) -> Result<GcsBucket> {
        let fail = |e| errors::from_client(e, "open", format!("gs://{bucket}"));
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_client_options(reach.client)
            .with_retry(reach.retry)
            .with_http_connector(reach.connector);
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
        check_name(bucket, &format!("gs://{bucket}"))?;
        check_endpoint(&endpoint)?;
        if endpoint.starts_with("http://") {
            builder =
                builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
        }
        let proxy = builder.get_config_value(&GoogleConfigKey::Client(ClientConfigKey::ProxyUrl));
        let asks_others = options.get("STORAGE_EMULATOR_HOST").is_none();
        if needs_no_certificates(&endpoint, asks_others, proxy.as_deref()) {
            let key = GoogleConfigKey::Client(ClientConfigKey::NoSystemCertificates);
            builder = builder.with_config(key, "true");
        }
        Ok(GcsBucket {
            store: builder.build().map_err(fail)?,
            endpoint,
            bucket: bucket.to_string(),
        })
    }

    pub(super) async fn authorize(&self, request: &mut HttpRequest) -> Result<()> {
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
    pub(crate) async fn check(&self, wire: Wire<'_>, at: &Location) -> Result<()> {
        let outcome = wire.ask(
            Asking {
                operation: "look at",
                at,
                patience: patience(0),
            },
            |_| async move {
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
            },
            move |answer, _| async move {
                match answer.status {
                    200 | 401 | 403 => Attempt::Done(()),
                    404 => Attempt::Failed(errors::missing_bucket_error("look at", at)),
                    _ => answered_badly(&answer, "look at", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}
