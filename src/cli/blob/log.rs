//! `forkpoint blob log`.

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use futures::StreamExt;

use crate::blob::{JobId, LogConfig, LogName, LogStore, ReceiverId};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{blob_log_json, blob_log_text, blob_logs_json, blob_logs_text};

use super::super::ui::Ui;
use super::super::{Format, Output, exit};
use super::remote::{self, Remote};

/// Logs of nodes: publish one, read a range of one, list them.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Publish what a file has now; of a log that grew only the tail is sent.
    Put {
        /// The job that it belongs to.
        job: String,
        /// The node, such as a task manager's id.
        node: String,
        /// The file.
        file: PathBuf,
        /// The name of the log. Left out: the file's.
        #[arg(long)]
        name: Option<String>,
    },
    /// Print a log, or a range of it.
    Get {
        /// The job that it belongs to.
        job: String,
        /// The node.
        node: String,
        /// The name of the log.
        name: String,
        /// Bytes FIRST-LAST, FIRST- or -COUNT only.
        #[arg(long, allow_hyphen_values = true)]
        range: Option<String>,
    },
    /// List the logs of a job.
    Ls {
        /// The job.
        job: String,
    },
}

pub(in crate::cli) async fn run(args: &Args, format: Format, ui: &Ui) -> Result<Output> {
    let client = args.remote.client(ui)?;
    let (What::Put { job, .. } | What::Get { job, .. } | What::Ls { job }) = &args.what;
    let job = JobId::parse(job)?;
    let logs = LogStore::new(client, job.clone(), LogConfig::default());
    match &args.what {
        What::Put {
            node, file, name, ..
        } => {
            let shown = file.file_name().map(|n| n.to_string_lossy().into_owned());
            let shown = name.clone().or(shown).unwrap_or_default();
            let log = LogName::new(ReceiverId::parse(node)?, &shown)?;
            let index = logs.publish(&log, file).await?;
            let missing =
                || Error::new(ErrorKind::NotFound, "there is no such file").at(file.display());
            let index = index.ok_or_else(missing)?;
            Ok(Output {
                text: blob_log_text(&log, Some(&index)),
                json: blob_log_json(&job, &log, Some(&index)),
                svg: None,
                code: exit::DONE,
            })
        }
        What::Get {
            node, name, range, ..
        } => {
            let log = LogName::new(ReceiverId::parse(node)?, name)?;
            let Some(index) = logs.open(&log).await? else {
                return Err(Error::new(ErrorKind::NotFound, "there is no such log")
                    .at(&log)
                    .hint("`forkpoint blob log ls JOB` shows what there is"));
            };
            let mut text = String::new();
            if format == Format::Text {
                let range = match range {
                    Some(text) => remote::range(text, index.length())?,
                    None => 0..index.length(),
                };
                let mut pieces = std::pin::pin!(logs.read(&index, range));
                while let Some(piece) = pieces.next().await {
                    if let Err(e) = std::io::stdout().lock().write_all(&piece?) {
                        if e.kind() == std::io::ErrorKind::BrokenPipe {
                            break;
                        }
                        return Err(Error::of_write(e).during("print"));
                    }
                }
            } else {
                text = blob_log_text(&log, Some(&index));
            }
            Ok(Output {
                text,
                json: blob_log_json(&job, &log, Some(&index)),
                svg: None,
                code: exit::DONE,
            })
        }
        What::Ls { .. } => {
            let list = logs.list().await?;
            Ok(Output {
                text: blob_logs_text(&list),
                json: blob_logs_json(&job, &list),
                svg: None,
                code: exit::DONE,
            })
        }
    }
}
