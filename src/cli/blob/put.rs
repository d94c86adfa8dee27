//! `forkpoint blob put`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::blob::client::{Content, Upload};
use crate::blob::{Class, DisplayName, JobEvent, JobId};
use crate::error::{Error, Result};
use crate::report::{blob_put_json, blob_put_text};

use super::super::ui::Ui;
use super::super::{Output, exit};
use super::remote::Remote;

/// Upload files as one batch: all become visible, or none. What is there already is not sent.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job that they belong to: an id of lower-case letters, digits, `-` and `_`.
    job: String,
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// They can be made again: kept in the server's memory and directory only, and gone when it restarts.
    #[arg(long)]
    recreatable: bool,
    /// Register the job, which holds the files from then on; a job that is registered holds them besides the others. Without
    /// it they lapse after the retention interval, unless somebody holds them by then.
    #[arg(long)]
    register: bool,
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn run(args: &Args, ui: &Ui) -> Result<Output> {
    let job = JobId::parse(&args.job)?;
    let client = args.remote.client(ui)?;
    let class = match args.recreatable {
        true => Class::Recreatable,
        false => Class::Retained,
    };
    let mut names = Vec::new();
    let mut uploads = Vec::new();
    for file in &args.files {
        let shown = file.file_name().map(|n| n.to_string_lossy().into_owned());
        let shown = shown.ok_or_else(|| Error::invalid("it has no name").at(file.display()))?;
        uploads.push(Upload {
            name: Some(DisplayName::parse(&shown)?),
            class,
            content: Content::File(file.clone()),
        });
        names.push(shown);
    }
    let report = client.upload(&job, &uploads).await?;
    if args.register {
        let digests: BTreeSet<_> = report.digests.iter().copied().collect();
        client
            .job_event(&job, &JobEvent::Registered { digests })
            .await?;
    }
    Ok(Output {
        text: blob_put_text(&job, &names, &report, args.register),
        json: blob_put_json(&job, &names, &report, args.register),
        svg: None,
        code: exit::DONE,
    })
}
