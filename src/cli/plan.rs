//! `forkpoint plan`.

use crate::error::Result;
use crate::fork::{self, ForkRequest};
use crate::report::{plan_json, plan_text};
use crate::store::Stores;

use super::lookups::Lookups;
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
    #[command(flatten)]
    lookups: Lookups,
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
        self.lookups.add_to(&mut request)?;
        request.other_services = self.other_services;
        Ok(request)
    }
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let planned = fork::plan(stores, &args.what.request()?, ui).await?;
    Ok(Output {
        text: plan_text(&planned.plan),
        json: plan_json(&planned.plan),
        svg: None,
        code: exit::DONE,
    })
}
