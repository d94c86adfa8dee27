//! `forkpoint plan`.

use crate::error::Result;
use crate::fork::{self, ForkRequest, MovedFrom};
use crate::report::{plan_json, plan_text};
use crate::store::Stores;

use super::ui::Ui;
use super::{Output, exit, location};

/// Show what a fork would do: every object, where it would go, and how. Writes nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    what: What,
}

/// What to fork, and where to: shared by `plan` and `fork`.
#[derive(Debug, clap::Args)]
pub(super) struct What {
    /// The snapshot: the folder that holds `_metadata`, such as s3://bucket/job/chk-42.
    snapshot: String,
    /// The root of the fork. The new snapshot lies below it under its old name, as chk-42.
    destination: String,
    /// The snapshot was copied here by another tool: look up references below this old place
    /// below the snapshot's real one. OLD alone: the new place is found among the folders above
    /// the snapshot.
    #[arg(long, value_name = "OLD[=NEW]")]
    moved_from: Vec<String>,
    /// A folder, usually a native savepoint, that holds files which relative references of this
    /// snapshot do not find in its own folder.
    #[arg(long, value_name = "FOLDER")]
    look_in: Vec<String>,
    /// Read files on other services than the snapshot's own too, such as files of this machine for a
    /// snapshot in a bucket.
    #[arg(long)]
    other_services: bool,
}

impl What {
    pub(super) fn request(&self) -> Result<ForkRequest> {
        let mut request = ForkRequest::new(
            location::parse(&self.snapshot)?,
            location::parse(&self.destination)?,
        );
        request.moved_from = self
            .moved_from
            .iter()
            .map(|t| MovedFrom::parse(t))
            .collect::<Result<_>>()?;
        request.look_in = self
            .look_in
            .iter()
            .map(|t| location::parse(t))
            .collect::<Result<_>>()?;
        request.other_services = self.other_services;
        Ok(request)
    }
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let planned = fork::plan(stores, &args.what.request()?, ui).await?;
    Ok(Output {
        text: plan_text(&planned.plan),
        json: plan_json(&planned.plan),
        code: exit::DONE,
    })
}
