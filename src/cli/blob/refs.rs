//! `forkpoint blob refs` and `forkpoint blob why`.

use std::time::Duration;

use crate::blob::{JobId, LeaseId, ReceiverId};
use crate::error::Result;
use crate::ownership::parse_millis;
use crate::report::{
    blob_refs_empty_json, blob_refs_empty_text, blob_refs_json, blob_refs_text,
    blob_why_empty_json, blob_why_empty_text, blob_why_json, blob_why_text,
};

use super::super::ui::Ui;
use super::super::{Output, exit};
use super::named::Named;
use super::remote::Remote;

/// Who holds a blob; and hold it, give it back, acknowledge it.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job that it belongs to.
    job: String,
    /// Its digest, or at least the first 8 digits of it, except where a reference changes.
    digest: String,
    /// Hold it under this name; holding it again moves the end.
    #[arg(long, value_name = "ID", group = "act")]
    lease: Option<String>,
    /// For how long, such as 10m or 24h.
    #[arg(
        long = "for",
        value_name = "TIME",
        requires = "lease",
        default_value = "30m"
    )]
    time: String,
    /// Give back what is held under this name; a name that holds nothing is fine.
    #[arg(long, value_name = "ID", group = "act")]
    release: Option<String>,
    /// Acknowledge a message for this receiver; repeating it is fine.
    #[arg(long, value_name = "RECEIVER", group = "act")]
    ack: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn run(args: &Args, ui: &Ui) -> Result<Output> {
    let (job, named) = (JobId::parse(&args.job)?, Named::parse(&args.digest)?);
    if args.lease.is_some() || args.release.is_some() || args.ack.is_some() {
        named.must_be_whole()?;
    }
    let client = args.remote.client(ui)?;
    let key = named.find(&client, &job).await?;
    if let Some(id) = &args.lease {
        let time = Duration::from_millis(parse_millis(&args.time)?);
        client
            .acquire_lease(&key, &LeaseId::parse(id)?, time)
            .await?;
    }
    if let Some(id) = &args.release {
        client.release(&key, &LeaseId::parse(id)?).await?;
    }
    if let Some(who) = &args.ack {
        client.acknowledge(&key, &ReceiverId::parse(who)?).await?;
    }
    if key.digest.is_empty_blob() {
        return Ok(Output {
            text: blob_refs_empty_text(),
            json: blob_refs_empty_json(&job),
            svg: None,
            code: exit::DONE,
        });
    }
    let answer = client.why(&key).await?;
    Ok(Output {
        text: blob_refs_text(&answer),
        json: blob_refs_json(&key.job, &answer),
        svg: None,
        code: exit::DONE,
    })
}

/// Why a blob stays or goes: exit code 0 if the next sweep takes it, 3 if it stays.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct WhyArgs {
    /// The job that it belongs to.
    job: String,
    /// Its digest, or at least the first 8 digits of it.
    digest: String,
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn why(args: &WhyArgs, ui: &Ui) -> Result<Output> {
    let (job, named) = (JobId::parse(&args.job)?, Named::parse(&args.digest)?);
    let client = args.remote.client(ui)?;
    let key = named.find(&client, &job).await?;
    if key.digest.is_empty_blob() {
        return Ok(Output {
            text: blob_why_empty_text(),
            json: blob_why_empty_json(&job),
            svg: None,
            code: exit::REFUSED,
        });
    }
    let answer = client.why(&key).await?;
    Ok(Output {
        text: blob_why_text(&key.job, &answer),
        json: blob_why_json(&key.job, &answer),
        svg: None,
        code: match answer.why.goes() {
            true => exit::DONE,
            false => exit::REFUSED,
        },
    })
}
