//! Azure: Copy Blob inside one account, waited for until the service says that it is done.
//!
//! A copy may be answered with `202` and status `pending`: the destination then exists with
//! length 0 and is not yet a copy. So the status is polled, the copy id is checked to be ours, and
//! a copy that failed or was aborted is an error.
//! Source of the rules: the page "Copy Blob" of the Azure REST reference.

use std::fmt;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HeaderValue, IF_NONE_MATCH};
use http::{Method as HttpMethod, Request};
use object_store::azure::{
    AzureAuthorizer, AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder,
};
use object_store::client::{HttpRequest, HttpRequestBody};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::duplicate::{Copied, CopyOrder};
use super::errors;
use super::http::{Answer, Attempt, Wire, answered_badly, encode_key, patience, with_retries};
use super::location::Bucket;
use super::method::Method;
use super::options::Options;

const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_CEILING: Duration = Duration::from_secs(5);

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
    pub(crate) fn open(
        bucket: &Bucket,
        options: &Options,
        client: object_store::ClientOptions,
        retry: object_store::RetryConfig,
    ) -> Result<AzureContainer> {
        let at = format!("az://{}", bucket.name);
        let fail = |e| errors::from_client(e, "open", &at);
        let mut builder = MicrosoftAzureBuilder::new()
            .with_client_options(client)
            .with_retry(retry);
        for (name, value) in options.with_prefix("AZURE_") {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
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
        let emulator = options.is_on("AZURE_STORAGE_USE_EMULATOR");
        let endpoint = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]
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
        if endpoint.starts_with("http://") {
            builder = builder.with_allow_http(true);
        }
        builder = builder
            .with_account(&account)
            .with_container_name(&bucket.name);
        let skip_signature = builder
            .get_config_value(&AzureConfigKey::SkipSignature)
            .is_some_and(|v| v.eq_ignore_ascii_case("true"));
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

    fn url_of(&self, key: &str) -> String {
        format!("{}/{}", self.endpoint, encode_key(key))
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

    async fn signed(&self, mut request: HttpRequest) -> Result<HttpRequest> {
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

    async fn copy_request(
        &self,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<HttpRequest> {
        let mut source = from.url_of(order.source.key());
        // With a SAS the source must carry it too; with key or token the account is enough.
        if !from.skip_signature
            && let AzureCredential::SASToken(pairs) = &*from.credential().await?
        {
            let query = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs(pairs)
                .finish();
            source = format!("{source}?{query}");
        }
        let mut request = Request::builder()
            .method(HttpMethod::PUT)
            .uri(self.url_of(order.destination.key()))
            .header(CONTENT_LENGTH, "0")
            .body(HttpRequestBody::empty())
            .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
        let bad_header =
            |_| Error::invalid("a tag holds characters that no header can").at(order.source);
        let headers = request.headers_mut();
        let mut value = HeaderValue::from_str(&source).map_err(bad_header)?;
        value.set_sensitive(true);
        headers.insert("x-ms-copy-source", value);
        if let Some(tag) = order.source_tag {
            headers.insert(
                "x-ms-source-if-match",
                HeaderValue::from_str(tag).map_err(bad_header)?,
            );
        }
        if order.create_only {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        self.signed(request).await
    }

    /// Copies one blob of `from` (same account) into this container. One request when the service
    /// copies at once, else one more for each look at a pending copy.
    pub(crate) async fn copy(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let outcome = with_retries(|uncertain_before| async move {
            wire.attempt(
                self.copy_request(from, order),
                patience(order.size),
                "copy to",
                order.destination,
                |answer| async move { self.judge(wire, &answer, order, uncertain_before).await },
            )
            .await
        })
        .await?;
        Ok(Copied {
            attempts: outcome.attempts,
            ..outcome.value
        })
    }

    async fn judge(
        &self,
        wire: Wire<'_>,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        match answer.status {
            201 | 202 => {
                let tag = answer.header("etag").map(str::to_string);
                match (
                    answer.header("x-ms-copy-status"),
                    answer.header("x-ms-copy-id"),
                ) {
                    (Some("success"), _) => Attempt::Done(Copied::new(Method::AzureCopy, tag)),
                    (Some("pending"), Some(id)) => match self.wait_for(wire, order, id).await {
                        Ok(tag) => Attempt::Done(Copied::new(Method::AzureCopy, tag)),
                        Err(e) => Attempt::Failed(e),
                    },
                    _ => answered_badly(answer, "copy to", order.destination),
                }
            }
            409 if !String::from_utf8_lossy(&answer.body).contains("BlobAlreadyExists") => {
                answered_badly(answer, "copy to", order.destination)
            }
            409 | 412 => {
                order
                    .after_refusal(&self.store, Method::AzureCopy, uncertain_before)
                    .await
            }
            404 => Attempt::Failed(errors::from_answer(404, &answer.body, "copy", order.source)),
            _ => answered_badly(answer, "copy to", order.destination),
        }
    }

    /// Looks at the destination until its copy `id` is no longer pending. Asked to stop, it has the
    /// service stop too.
    async fn wait_for(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        id: &str,
    ) -> Result<Option<String>> {
        let fail = |kind, text: String| {
            Err(Error::new(kind, text)
                .during("copy to")
                .at(order.destination))
        };
        let mut pause = POLL_FIRST;
        loop {
            tokio::select! {
                () = clock::sleep(pause) => {}
                () = order.cancel.cancelled() => {
                    self.abort(wire, order, id).await?;
                    order.cancel.check()?;
                }
            }
            pause = (pause * 2).min(POLL_CEILING);
            let looked = with_retries(|_| async move {
                let request = async {
                    let request = Request::builder()
                        .method(HttpMethod::HEAD)
                        .uri(self.url_of(order.destination.key()))
                        .body(HttpRequestBody::empty())
                        .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
                    self.signed(request).await
                };
                wire.attempt(
                    request,
                    patience(0),
                    "wait for",
                    order.destination,
                    |answer| async move {
                        match answer.status {
                            200 => Attempt::Done(answer),
                            _ => answered_badly(&answer, "wait for", order.destination),
                        }
                    },
                )
                .await
            })
            .await?
            .value;
            if looked.header("x-ms-copy-id") != Some(id) {
                return fail(
                    ErrorKind::Conflict,
                    "another copy was started onto the same blob".into(),
                );
            }
            match looked.header("x-ms-copy-status") {
                Some("success") => return Ok(looked.header("etag").map(str::to_string)),
                Some("pending") => {}
                status => {
                    let why = looked
                        .header("x-ms-copy-status-description")
                        .unwrap_or("no reason given");
                    return fail(
                        ErrorKind::Unavailable,
                        format!(
                            "the service ended the copy as {}: {why}",
                            status.unwrap_or("unknown")
                        ),
                    );
                }
            }
        }
    }

    /// Ends a pending copy: the destination is then an empty blob, which is removed.
    async fn abort(&self, wire: Wire<'_>, order: &CopyOrder<'_>, id: &str) -> Result<()> {
        let outcome = with_retries(|_| async move {
            let request = async {
                let url = format!(
                    "{}?comp=copy&copyid={id}",
                    self.url_of(order.destination.key())
                );
                let request = Request::builder()
                    .method(HttpMethod::PUT)
                    .uri(url)
                    .header(CONTENT_LENGTH, "0")
                    .header("x-ms-copy-action", "abort")
                    .body(HttpRequestBody::empty())
                    .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
                self.signed(request).await
            };
            wire.attempt(
                request,
                patience(0),
                "abort the copy to",
                order.destination,
                |answer| async move {
                    match answer.status {
                        // 409: it ended by itself meanwhile.
                        204 | 404 | 409 => Attempt::Done(answer.status == 204),
                        _ => answered_badly(&answer, "abort the copy to", order.destination),
                    }
                },
            )
            .await
        });
        if outcome.await?.value {
            use object_store::ObjectStoreExt;
            self.store
                .delete(&order.destination.object_path()?)
                .await
                .map_err(|e| {
                    errors::from_client(e, "remove the aborted copy at", order.destination)
                })?;
        }
        Ok(())
    }
}
