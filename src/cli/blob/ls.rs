//! `forkpoint blob ls` and `forkpoint blob jobs`.

use crate::blob::JobId;
use crate::error::Result;
use crate::report::{blob_jobs_json, blob_jobs_text, blob_ls_json, blob_ls_text};

use super::super::ui::Ui;
use super::super::{Output, exit};
use super::remote::Remote;

/// List the blobs of a job: state, holders, when each may go.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job.
    job: String,
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn run(args: &Args, ui: &Ui) -> Result<Output> {
    let job = JobId::parse(&args.job)?;
    let list = args.remote.client(ui)?.blobs(&job).await?;
    Ok(Output {
        text: blob_ls_text(&job, &list),
        json: blob_ls_json(&job, &list),
        svg: None,
        code: exit::DONE,
    })
}

/// List the jobs that a server knows, those included that are over and still remembered.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct JobsArgs {
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn jobs(args: &JobsArgs, ui: &Ui) -> Result<Output> {
    let list = args.remote.client(ui)?.jobs().await?;
    Ok(Output {
        text: blob_jobs_text(&list),
        json: blob_jobs_json(&list),
        svg: None,
        code: exit::DONE,
    })
}
