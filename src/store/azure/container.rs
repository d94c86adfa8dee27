//! One container: its client, its URL, and signed requests of our own.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Method as HttpMethod, Request};
use object_store::azure::{
    AzureAuthorizer, AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder,
};
use object_store::client::{ClientConfigKey, HttpRequest, HttpRequestBody};
use object_store::signer::Signer;

use crate::error::{Error, Result};

use super::super::checksum::Md5Sum;
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, encode_key, patience};
use super::super::location::{Bucket, Location};
use super::super::options::{Options, check_endpoint, check_name};
use super::super::reach::{Reach, needs_no_certificates};

/// One container: object_store's client, and what our own requests need besides.
pub(crate) struct AzureContainer {
    pub(crate) store: MicrosoftAzure,
    /// URL of the container, without a trailing slash.
    endpoint: String,
    account: String,
    container: String,
    skip_signature: bool,
}

impl fmt::Debug for AzureContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureContainer")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// How long the service may read the source of a copy between accounts by one signed URL. Each request
/// gets its own.
const SOURCE_IS_READABLE_FOR: Duration = Duration::from_secs(60 * 60);

fn with_query(url: &str, pairs: &[(String, String)]) -> String {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish();
    format!("{url}?{query}")
}

impl AzureContainer {
    /// The account that `options` name for locations that name none.
    pub(crate) fn default_account(options: &Options) -> Option<&str> {
        options.get("AZURE_STORAGE_ACCOUNT_NAME").or_else(|| {
            options
                .is_on("AZURE_STORAGE_USE_EMULATOR")
                .then_some("devstoreaccount1")
        })
    }

    /// Makes the client for `bucket` from the `AZURE_*` settings.
    pub(crate) fn open(bucket: &Bucket, options: &Options, reach: Reach) -> Result<AzureContainer> {
        let at = format!("az://{}", bucket.name);
        let fail = |e| errors::from_client(e, "open", &at);
        let mut builder = MicrosoftAzureBuilder::new()
            .with_client_options(reach.client)
            .with_retry(reach.retry)
            .with_http_connector(reach.connector);
        let account = bucket
            .account
            .as_deref()
            .or_else(|| AzureContainer::default_account(options))
            .ok_or_else(|| {
                Error::invalid("the storage account is not known")
                    .at(&at)
                    .hint("set AZURE_STORAGE_ACCOUNT_NAME, or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
            })?
            .to_string();
        let set = |builder: MicrosoftAzureBuilder, name: &str, value: &str| match name
            .to_ascii_lowercase()
            .parse::<AzureConfigKey>()
        {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        };
        // `AZURE_STORAGE_ACCOUNT_KEY_STAGING` is the key of the account `staging` alone.
        let own = format!("_{}", account.to_ascii_uppercase());
        for (name, value) in options.with_prefix("AZURE_") {
            builder = set(builder, name, value);
        }
        for (name, value) in options.with_prefix("AZURE_") {
            if let Some(name) = name.to_ascii_uppercase().strip_suffix(&own) {
                builder = set(builder, name, value);
            }
        }
        let emulator = options.is_on("AZURE_STORAGE_USE_EMULATOR");
        let own_endpoint = format!("AZURE_STORAGE_ENDPOINT{own}");
        let endpoint = [&own_endpoint, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]
            .iter()
            .find_map(|name| options.get(name))
            .map(|url| url.trim_end_matches('/').to_string());
        let endpoint = match endpoint {
            Some(url) => url,
            None if emulator => {
                let url = options
                    .get("AZURITE_BLOB_STORAGE_URL")
                    .unwrap_or("http://127.0.0.1:10000");
                format!("{}/{account}", url.trim_end_matches('/'))
            }
            None => format!("https://{account}.blob.core.windows.net"),
        };
        check_name(&bucket.name, &at)?;
        check_name(&account, &at)?;
        check_endpoint(&endpoint)?;
        if endpoint.starts_with("http://") {
            builder = builder.with_allow_http(true);
        }
        builder = builder
            .with_account(&account)
            .with_container_name(&bucket.name);
        let skip_signature = builder
            .get_config_value(&AzureConfigKey::SkipSignature)
            .is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let is_set = |key: AzureConfigKey| builder.get_config_value(&key).is_some();
        let asks_others = !skip_signature
            && !is_set(AzureConfigKey::AccessKey)
            && !is_set(AzureConfigKey::SasKey);
        let proxy = builder.get_config_value(&AzureConfigKey::Client(ClientConfigKey::ProxyUrl));
        if needs_no_certificates(&endpoint, asks_others, proxy.as_deref()) {
            let key = AzureConfigKey::Client(ClientConfigKey::NoSystemCertificates);
            builder = builder.with_config(key, "true");
        }
        Ok(AzureContainer {
            store: builder.build().map_err(fail)?,
            endpoint: format!("{endpoint}/{}", bucket.name),
            account,
            container: bucket.name.clone(),
            skip_signature,
        })
    }

    pub(crate) fn account(&self) -> &str {
        &self.account
    }

    /// The URL of a blob, unsigned.
    pub(super) fn url_of(&self, key: &str) -> String {
        format!("{}/{}", self.endpoint, encode_key(key))
    }

    /// A request for the blob `key`, not signed yet; `query` without its question mark.
    pub(super) fn request(
        &self,
        method: HttpMethod,
        key: &str,
        query: &str,
    ) -> Result<HttpRequest> {
        let mark = if query.is_empty() { "" } else { "?" };
        Request::builder()
            .method(method)
            .uri(format!("{}{mark}{query}", self.url_of(key)))
            .header(CONTENT_LENGTH, "0")
            .body(HttpRequestBody::empty())
            .map_err(|e| Error::invalid(e.to_string()).at(format!("az://{}/{key}", self.container)))
    }

    /// As [`AzureContainer::request`], with a body and its checksum, which the service checks.
    pub(super) fn upload(
        &self,
        key: &str,
        query: &str,
        bytes: &Bytes,
        sum: Md5Sum,
    ) -> Result<HttpRequest> {
        let mut request = self.request(HttpMethod::PUT, key, query)?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        headers.insert("content-md5", sum.header()?);
        *request.body_mut() = bytes.clone().into();
        Ok(request)
    }

    /// What authorizes the service to read the blob `key` here for a copy that another account makes:
    /// its URL, with a short-lived signature where the credential is a key, or a token beside it.
    pub(super) async fn as_source(&self, key: &str) -> Result<(HeaderValue, Option<HeaderValue>)> {
        let bad = |_| Error::invalid("a name that no header can hold").at(self.url_of(key));
        let mut url = self.url_of(key);
        let mut bearer = None;
        if !self.skip_signature {
            match &*self.credential().await? {
                AzureCredential::SASToken(pairs) => url = with_query(&url, pairs),
                AzureCredential::BearerToken(token) => {
                    let mut value =
                        HeaderValue::from_str(&format!("Bearer {token}")).map_err(bad)?;
                    value.set_sensitive(true);
                    bearer = Some(value);
                }
                AzureCredential::AccessKey(_) => {
                    let path = object_store::path::Path::parse(key)
                        .map_err(|e| Error::invalid(e.to_string()).at(self.url_of(key)))?;
                    let signed = self
                        .store
                        .signed_url(HttpMethod::GET, &path, SOURCE_IS_READABLE_FOR)
                        .await
                        .map_err(|e| errors::from_client(e, "sign the URL of", self.url_of(key)))?;
                    url = format!("{url}?{}", signed.query().unwrap_or_default());
                }
            }
        }
        let mut value = HeaderValue::from_str(&url).map_err(bad)?;
        value.set_sensitive(true);
        Ok((value, bearer))
    }

    /// The URL of the blob `key`, for a copy inside its account: with a SAS the source must carry it
    /// too, else the account is enough.
    pub(super) async fn as_own_source(&self, key: &str) -> Result<HeaderValue> {
        let mut url = self.url_of(key);
        if !self.skip_signature
            && let AzureCredential::SASToken(pairs) = &*self.credential().await?
        {
            url = with_query(&url, pairs);
        }
        let mut value = HeaderValue::from_str(&url)
            .map_err(|_| Error::invalid("a name that no header can hold").at(self.url_of(key)))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// What the service says of a blob, for `operation`. One request.
    pub(super) async fn head(
        &self,
        wire: Wire<'_>,
        operation: &'static str,
        at: &Location,
    ) -> Result<Answer> {
        let asking = Asking {
            operation,
            at,
            patience: patience(0),
        };
        let outcome = wire.ask(
            asking,
            |_| async move {
                self.signed(self.request(HttpMethod::HEAD, at.key(), "")?)
                    .await
            },
            move |answer, _| async move {
                match answer.status {
                    200 => Attempt::Done(answer),
                    _ => answered_badly(&answer, operation, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    async fn credential(&self) -> Result<std::sync::Arc<AzureCredential>> {
        self.store
            .credentials()
            .get_credential()
            .await
            .map_err(|e| {
                errors::from_client(e, "sign a request for", format!("az://{}", self.container))
            })
    }

    pub(super) async fn signed(&self, mut request: HttpRequest) -> Result<HttpRequest> {
        if self.skip_signature {
            return Ok(request);
        }
        let credential = self.credential().await?;
        AzureAuthorizer::new(&credential, &self.account)
            .try_authorize(&mut request)
            .map_err(|e| {
                errors::from_client(e, "sign a request for", format!("az://{}", self.container))
            })?;
        Ok(request)
    }
}
