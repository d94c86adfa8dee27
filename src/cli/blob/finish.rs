//! `forkpoint blob finish`.

use clap::ValueEnum;

use crate::blob::{JobEvent, JobId, Outcome};
use crate::error::{ErrorKind, Result};
use crate::report::{blob_finish_json, blob_finish_text};

use super::super::ui::Ui;
use super::super::{Output, exit};
use super::remote::Remote;

/// End a job: all its blobs go at once, whoever holds them.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job.
    job: String,
    /// How it ended.
    #[arg(long, value_enum, default_value_t = How::Finished)]
    outcome: How,
    /// Also a job that the server does not know: nothing can be stored for it afterwards.
    #[arg(long)]
    unknown: bool,
    /// Say what would go, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    Finished,
    Cancelled,
    Failed,
}

pub(in crate::cli) async fn run(args: &Args, ui: &Ui) -> Result<Output> {
    let job = JobId::parse(&args.job)?;
    let client = args.remote.client(ui)?;
    let outcome = match args.outcome {
        How::Finished => Outcome::Finished,
        How::Cancelled => Outcome::Cancelled,
        How::Failed => Outcome::Failed,
    };
    let list = match client.blobs(&job).await {
        Ok(list) => Some(list),
        Err(e) if e.kind() == ErrorKind::NotFound && args.unknown => None,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(e.hint("is the name right? --unknown ends a job before it has begun"));
        }
        Err(e) => return Err(e),
    };
    if !args.dry_run {
        client
            .job_event(&job, &JobEvent::Terminal { outcome })
            .await?;
    }
    Ok(Output {
        text: blob_finish_text(&job, list.as_ref(), !args.dry_run),
        json: blob_finish_json(&job, outcome, list.as_ref(), !args.dry_run),
        svg: None,
        code: exit::DONE,
    })
}
