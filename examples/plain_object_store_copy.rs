//! The shortest program that duplicates an object with `object_store` alone, for comparisons:
//! `benches/peers/correctness.py` runs it where a caller of that crate would have written it.
//!
//! ```text
//! cargo run --release --example plain_object_store_copy -- s3://one/a s3://one/b --if-not-exists
//! ```
//!
//! Settings are those of the environment (`AWS_...`, `AZURE_STORAGE_...`); for Google the address of
//! an emulator in `STORAGE_EMULATOR_HOST`. Both objects must be in one bucket, for a store is one.

#![allow(clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, S3CopyIfNotExists};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The scheme, the bucket and the key of a URL; for a path of the file system only the path.
fn split(place: &str) -> Result<(&str, &str, Path)> {
    match place.split_once("://") {
        None => Ok(("file", "", Path::from_absolute_path(place)?)),
        Some((scheme, rest)) => {
            let (bucket, key) = rest.split_once('/').ok_or("no key in the URL")?;
            Ok((scheme, bucket, Path::parse(key)?))
        }
    }
}

fn open(scheme: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    Ok(match scheme {
        "file" => Arc::new(LocalFileSystem::new()),
        "s3" => Arc::new(
            AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_allow_http(true)
                // What the crate's documentation names for stores that know the header.
                .with_copy_if_not_exists(S3CopyIfNotExists::Header(
                    "if-none-match".into(),
                    "*".into(),
                ))
                .build()?,
        ),
        "gs" => {
            let url = std::env::var("STORAGE_EMULATOR_HOST")?;
            let account = format!(
                r#"{{"gcs_base_url": "{url}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#
            );
            Arc::new(
                GoogleCloudStorageBuilder::new()
                    .with_bucket_name(bucket)
                    .with_service_account_key(account)
                    .build()?,
            )
        }
        "az" => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_allow_http(true)
                .build()?,
        ),
        other => return Err(format!("no store for {other}:").into()),
    })
}

async fn run(arguments: &[String]) -> Result<()> {
    let ([from, to] | [from, to, _]) = arguments else {
        return Err("usage: plain_object_store_copy SOURCE DESTINATION [--if-not-exists]".into());
    };
    let ((scheme, bucket, from), (to_scheme, to_bucket, to)) = (split(from)?, split(to)?);
    if (scheme, bucket) != (to_scheme, to_bucket) {
        return Err("not offered: a store is one bucket, and copies inside it".into());
    }
    let store = open(scheme, bucket)?;
    match arguments.get(2).map(String::as_str) {
        None => store.copy(&from, &to).await?,
        Some("--if-not-exists") => store.copy_if_not_exists(&from, &to).await?,
        Some(other) => return Err(format!("{other} is not known").into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
