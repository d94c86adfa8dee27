//! The work of a fork as documents for the bulk copiers of the cloud services. Pure.
//!
//! Both can only put a prefix before the whole old key, so such a fork is planned with
//! [`Naming::WholeKeys`](crate::restore::Naming::WholeKeys): its objects lie at
//! `shared/FORK_ID/OLD_KEY`, and that folder is the prefix.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::restore::{RestorePlan, Task};
use crate::store::{Location, Provider};

/// What S3 Batch Operations copies at most, in bytes: 5 GB.
const S3_BATCH_LIMIT_BYTES: u64 = 5_000_000_000;
/// The longest key of S3 and of Google Cloud Storage, in bytes.
const KEY_LIMIT_BYTES: usize = 1024;
/// Percent-encoded in a manifest of S3 Batch Operations: everything but this and letters and digits.
const ENCODED_IN_MANIFESTS: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// For whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportKind {
    /// A Copy job of S3 Batch Operations.
    S3Batch,
    /// A job of Google's Storage Transfer Service.
    GcsTransfer,
}

/// The work of a fork for a bulk copier.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// The objects, as CSV.
    pub manifest: String,
    /// The job, as far as the plan knows it: what the service's own tool takes as JSON.
    pub job: Value,
}

/// Writes down `plan` for a bulk copier that will read the manifest at `manifest_at`.
///
/// # Errors
///
/// `Unsupported` if the service cannot do it: stores of others, sources in several buckets, objects
/// above its limit, keys that become too long. `Invalid` if the plan names its objects otherwise.
pub fn export(plan: &RestorePlan, kind: ExportKind, manifest_at: &Location) -> Result<Export> {
    let (Some(first), Some(root)) = (plan.tasks.first(), &plan.destination) else {
        return Err(Error::invalid("there is nothing to copy"));
    };
    let bucket = first.duplicate.source.bucket();
    let mut prefix: Option<String> = None;
    for task in plan.tasks.iter().map(|t| &t.duplicate) {
        let (from, to) = (&task.source, &task.destination);
        let Some(before) = to.key().strip_suffix(from.key()) else {
            return Err(Error::invalid(
                "the plan gives this object another name, which a bulk copier cannot",
            )
            .at(to));
        };
        if *prefix.get_or_insert_with(|| before.to_string()) != before {
            return Err(Error::invalid("the plan's names have several prefixes").at(to));
        }
        if from.bucket() != bucket {
            return unsupported("all objects must be in one bucket", from);
        }
        if to.key().len() > KEY_LIMIT_BYTES {
            return unsupported("its new key would be longer than 1024 bytes", from);
        }
        if kind == ExportKind::S3Batch && task.size > S3_BATCH_LIMIT_BYTES {
            return unsupported("S3 Batch Operations copies objects up to 5 GB", from);
        }
    }
    let prefix = prefix.unwrap_or_default();
    let tasks = || plan.tasks.iter().map(|t| &t.duplicate);
    match kind {
        ExportKind::S3Batch => {
            for at in [&first.duplicate.source, root, manifest_at] {
                if at.provider() != Provider::S3 {
                    return unsupported("S3 Batch Operations knows S3 alone", at);
                }
            }
            let manifest = tasks().map(|t| s3_row(&bucket.name, t)).collect();
            Ok(Export {
                manifest,
                job: s3_job(root, &prefix, manifest_at),
            })
        }
        ExportKind::GcsTransfer => {
            for at in [root, manifest_at] {
                if at.provider() != Provider::Gcs {
                    return unsupported(
                        "Storage Transfer Service is used to write to gs: from a manifest in gs:",
                        at,
                    );
                }
            }
            let source = match bucket.provider {
                Provider::Gcs => ("gcsDataSource", json!({"bucketName": bucket.name})),
                Provider::S3 => ("awsS3DataSource", json!({"bucketName": bucket.name})),
                _ => {
                    return unsupported(
                        "only sources in gs: and s3: are exported",
                        &first.duplicate.source,
                    );
                }
            };
            Ok(Export {
                manifest: tasks().map(|t| csv_row(t.source.key())).collect(),
                job: json!({
                    "description": "forkpoint",
                    "status": "ENABLED",
                    "transferSpec": {
                        source.0: source.1,
                        "gcsDataSink": {"bucketName": root.bucket().name, "path": prefix},
                        "transferManifest": {"location": manifest_at.to_string()},
                        "transferOptions": {"overwriteWhen": "NEVER"},
                    },
                }),
            })
        }
    }
}

fn unsupported<T>(why: &str, at: &Location) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, why)
        .during("export")
        .at(at)
        .hint("run the plan with `forkpoint run` instead"))
}

/// `bucket,key`, the key percent-encoded.
fn s3_row(bucket: &str, task: &Task) -> String {
    let key = utf8_percent_encode(task.source.key(), &ENCODED_IN_MANIFESTS);
    format!("{bucket},{key}\n")
}

/// What `aws s3control create-job --cli-input-json` takes, but for account, role and the manifest's
/// ETag, which only its owner knows.
fn s3_job(root: &Location, prefix: &str, manifest_at: &Location) -> Value {
    let (to, manifest) = (root.bucket().name, manifest_at.bucket().name);
    json!({
        "Description": "forkpoint",
        "Priority": 10,
        "Operation": {"S3PutObjectCopy": {
            "TargetResource": format!("arn:aws:s3:::{to}"),
            "TargetKeyPrefix": prefix.trim_end_matches('/'),
            "MetadataDirective": "COPY",
        }},
        "Manifest": {
            "Spec": {"Format": "S3BatchOperations_CSV_20180820", "Fields": ["Bucket", "Key"]},
            "Location": {"ObjectArn": format!("arn:aws:s3:::{manifest}/{}", manifest_at.key())},
        },
        "Report": {"Enabled": false},
    })
}

/// One field of CSV, quoted where it must be.
fn csv_row(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"\n", text.replace('"', "\"\"")),
        false => format!("{text}\n"),
    }
}
