//! One bucket: object_store's client, and signed requests of our own beside it.

use std::fmt;

use http::header::{HeaderName, HeaderValue};
use http::{Method as HttpMethod, Request};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer};
use object_store::client::{ClientConfigKey, HttpRequest, HttpRequestBody};

use crate::error::{Error, Result};

use super::super::digest::Sha256Sum;
use super::super::errors;
use super::super::http::encode_key;
use super::super::options::Options;
use super::super::options::{check_endpoint, check_name};
use super::super::reach::{Reach, needs_no_certificates};

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
    pub(crate) fn open(bucket: &str, options: &Options, reach: Reach) -> Result<S3Bucket> {
        let fail = |e| errors::from_client(e, "open", format!("s3://{bucket}"));
        let mut builder = AmazonS3Builder::new()
            .with_client_options(reach.client)
            .with_retry(reach.retry)
            .with_http_connector(reach.connector);
        for (name, value) in options.with_prefix("AWS_") {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_bucket_name(bucket);
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .iter()
            .find_map(|name| options.get(name));
        check_name(bucket, &format!("s3://{bucket}"))?;
        if let Some(endpoint) = endpoint {
            check_endpoint(endpoint)?;
        }
        // An endpoint that says http was meant as it was written.
        if endpoint.is_some_and(|e| e.starts_with("http://")) {
            builder = builder.with_allow_http(true);
        }
        let setting = |key| builder.get_config_value(&key);
        let is_on = |key| setting(key).is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let asks_others = setting(AmazonS3ConfigKey::AccessKeyId).is_none()
            && !is_on(AmazonS3ConfigKey::SkipSignature);
        let proxy = setting(AmazonS3ConfigKey::Client(ClientConfigKey::ProxyUrl));
        let no_certificates =
            endpoint.is_some_and(|at| needs_no_certificates(at, asks_others, proxy.as_deref()));
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
        let customer_keys = encryption_name == "sse-c";
        let (request_payer, skip_signature) = (
            is_on(AmazonS3ConfigKey::RequestPayer),
            is_on(AmazonS3ConfigKey::SkipSignature),
        );
        if no_certificates {
            let key = AmazonS3ConfigKey::Client(ClientConfigKey::NoSystemCertificates);
            builder = builder.with_config(key, "true");
        }
        Ok(S3Bucket {
            endpoint,
            region,
            bucket: bucket.to_string(),
            request_payer,
            skip_signature,
            encryption,
            customer_keys,
            store: builder.build().map_err(fail)?,
        })
    }

    /// The request, signed: over what it carries, which is hashed for that.
    pub(super) async fn signed(&self, request: HttpRequest) -> Result<HttpRequest> {
        self.signed_over(request, None).await
    }

    /// The same for a body whose digest is known: nothing is hashed.
    pub(super) async fn signed_over(
        &self,
        mut request: HttpRequest,
        body: Option<Sha256Sum>,
    ) -> Result<HttpRequest> {
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
            .try_authorize(
                &mut request,
                body.map(Sha256Sum::bytes).as_ref().map(|b| &b[..]),
            )
            .map_err(fail)?;
        Ok(request)
    }

    /// A request for the object `key` of this bucket, or for the bucket itself if `key` is empty.
    pub(super) fn request(
        &self,
        method: HttpMethod,
        key: &str,
        query: &str,
    ) -> Result<HttpRequest> {
        let slash = if key.is_empty() && query.is_empty() {
            ""
        } else {
            "/"
        };
        let mark = if query.is_empty() { "" } else { "?" };
        let url = format!("{}{slash}{}{mark}{query}", self.endpoint, encode_key(key));
        Request::builder()
            .method(method)
            .uri(url)
            .body(HttpRequestBody::empty())
            .map_err(|e| Error::invalid(e.to_string()).at(format!("s3://{}/{key}", self.bucket)))
    }

    /// True for AWS itself, whose rules are documented; everything else is tried out.
    pub(crate) fn is_aws(&self) -> bool {
        url::Url::parse(&self.endpoint).is_ok_and(|url| {
            url.host_str()
                .is_some_and(|h| h.ends_with(".amazonaws.com") || h.ends_with(".amazonaws.com.cn"))
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.bucket
    }

    /// Encryption headers for objects we write.
    pub(super) fn encryption(&self) -> &[(HeaderName, HeaderValue)] {
        &self.encryption
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::reach::SharedClients;
    use super::*;

    #[tokio::test]
    async fn a_body_whose_digest_is_known_is_not_hashed_to_sign_it() {
        let options = Options::default()
            .with("AWS_ACCESS_KEY_ID", "id")
            .with("AWS_SECRET_ACCESS_KEY", "secret");
        let bucket = S3Bucket::open("b", &options, Reach::by(&SharedClients::default())).unwrap();
        let request = || {
            let mut request = bucket.request(HttpMethod::PUT, "key", "").unwrap();
            *request.body_mut() = bytes::Bytes::from_static(b"abc").into();
            request
        };
        let hash = |request: &HttpRequest| {
            let header = request.headers().get("x-amz-content-sha256");
            header.unwrap().to_str().unwrap().to_string()
        };
        let own = bucket.signed(request()).await.unwrap();
        assert_eq!(hash(&own), Sha256Sum::of(b"abc").to_string());
        // Another one than it would have found itself: what it is told is what it takes.
        let told = Sha256Sum::of(b"something else");
        let over = bucket.signed_over(request(), Some(told)).await.unwrap();
        assert_eq!(hash(&over), told.to_string());
        assert_ne!(
            own.headers()["authorization"],
            over.headers()["authorization"]
        );
    }
}
