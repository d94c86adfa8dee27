//! Clients that find the server: the crate's own stores, object_store's, and bare requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forkpoint::store::{Options, Stores};
use http::HeaderMap;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{HttpClient, HttpConnector, HttpRequestBody, ReqwestConnector};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use super::{ACCESS_KEY, ACCOUNT_KEY, ACCOUNTS, FaultServer, SECRET_KEY, Service};

/// What a bare request was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|v| v.to_str().ok());
        value.unwrap_or("")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text between `<name>` and `</name>`.
    pub fn element(&self, name: &str) -> String {
        let text = self.text();
        let rest = text.split_once(&format!("<{name}>")).map_or("", |(_, r)| r);
        let found = rest
            .split_once(&format!("</{name}>"))
            .map_or("", |(f, _)| f);
        found.replace("&quot;", "\"")
    }
}

/// Few repetitions that come soon: tests do not wait.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(20),
            base: 2.0,
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(20),
    }
}

impl FaultServer {
    /// The crate's own stores, with this server for all services and nothing of the environment.
    pub fn stores(&self) -> Stores {
        let known = Options::default();
        let options = self
            .settings()
            .into_iter()
            .fold(known, |options, (name, value)| options.with(name, value));
        Stores::new(options)
    }

    /// The same, with an endpoint of its own for the second Azure account.
    pub fn stores_of_both_accounts(&self) -> Stores {
        let second = format!("{}/{}", self.url(Service::Azure), super::ACCOUNTS[1]);
        let mut settings = self.settings();
        settings.push(("AZURE_STORAGE_ENDPOINT_FAULTTWO", second));
        let known = Options::default();
        let options = settings
            .into_iter()
            .fold(known, |options, (name, value)| options.with(name, value));
        Stores::new(options)
    }

    pub fn s3(&self, bucket: &str) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_endpoint(self.url(Service::S3))
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY)
            .with_bucket_name(bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retries())
            .build()
            .unwrap()
    }

    pub fn gcs(&self, bucket: &str) -> GoogleCloudStorage {
        let account = serde_json::json!({
            "gcs_base_url": self.url(Service::Gcs),
            "disable_oauth": true,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        });
        GoogleCloudStorageBuilder::new()
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_service_account_key(account.to_string())
            .with_bucket_name(bucket)
            .with_retry(retries())
            .build()
            .unwrap()
    }

    /// A container of the first (0) or second (1) account.
    pub fn azure(&self, account: usize, container: &str) -> MicrosoftAzure {
        let account = ACCOUNTS[account];
        MicrosoftAzureBuilder::new()
            .with_endpoint(format!("{}/{account}", self.url(Service::Azure)))
            .with_allow_http(true)
            .with_account(account)
            .with_access_key(ACCOUNT_KEY)
            .with_container_name(container)
            .with_retry(retries())
            .build()
            .unwrap()
    }

    /// One bare request, with credentials that are accepted. `path` may hold a query.
    pub async fn request(
        &self,
        service: Service,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let authorization = match service {
            Service::S3 => format!(
                "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
            ),
            Service::Gcs => "Bearer none".to_string(),
            Service::Azure => {
                let account = path.split('/').nth(1).unwrap_or("");
                format!("SharedKey {account}:0")
            }
        };
        let mut all = vec![("authorization", authorization.as_str())];
        all.extend_from_slice(headers);
        self.bare_request(service, method, path, &all, body)
            .await
            .unwrap()
    }

    /// One request with these headers and no others; an error if there was no whole answer.
    pub async fn bare_request(
        &self,
        service: Service,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url(service)));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(HttpRequestBody::from(body.into())).unwrap();
        let response = self
            .client
            .get_or_init(bare_client)
            .execute(request)
            .await
            .map_err(|e| e.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.bytes().await.map_err(|e| e.to_string())?;
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }
}

fn bare_client() -> HttpClient {
    let options = ClientOptions::new()
        .with_allow_http(true)
        .with_timeout_disabled();
    ReqwestConnector::default().connect(&options).unwrap()
}
