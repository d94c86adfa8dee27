//! `forkpoint plan`.

use clap::ValueEnum;

use crate::error::{Error, ErrorKind, Result};
use crate::fork::{self, ExportKind, ForkRequest, PlannedFork};
use crate::report::{WorkersReport, plan_json, plan_text, workers_json, workers_svg, workers_text};
use crate::restore::{CostModel, Naming, PriceTable, estimate};
use crate::store::{Location, Stores};

use super::lookups::Lookups;
use super::ui::Ui;
use super::{Output, exit, location};

/// Show what a fork would do: every object, where it would go, and how.
///
/// With --workers the work is spread over many workers, and `--format svg` draws that; --out writes the plan for them, for `forkpoint
/// run` and `forkpoint commit`. Nothing else is written.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    what: What,
    /// Spread the work over N workers, and show how evenly that can be done and what it takes. What
    /// an earlier attempt has copied is left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    workers: Option<u32>,
    /// Write the plan for the workers: a file or a URL.
    #[arg(long, value_name = "PLAN", requires = "workers")]
    out: Option<String>,
    /// Make a plan for `forkpoint abandon` alone: also where something lies at the destination, which is not looked at.
    #[arg(long, requires = "out", conflicts_with = "export")]
    to_give_up: bool,
    /// What requests and bytes cost: a JSON file such as {"currency": "EUR", "methods": {"s3-copy":
    /// {"thousand_reads": 0.0004, "thousand_writes": 0.005, "gibibyte": 0}}}.
    #[arg(long, value_name = "FILE", requires = "workers")]
    prices: Option<String>,
    /// How the objects of the fork are named.
    #[arg(long, value_enum, default_value_t = Names::Engine, requires = "workers")]
    names: Names,
    /// Write the work for a bulk copier of the cloud service too. Implies --names whole-keys, since
    /// such copiers can only put a prefix before a key. Needs --workers, --out and --manifest.
    #[arg(long, value_enum, requires_all = ["workers", "out", "manifest"])]
    export: Option<For>,
    /// Where to write the list of objects for --export: a URL of the service that will read it.
    #[arg(long, value_name = "URL", requires = "export")]
    manifest: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum For {
    /// A Copy job of S3 Batch Operations: CSV manifest, and the job for `aws s3control create-job`.
    S3Batch,
    /// Google's Storage Transfer Service: CSV manifest, and the transfer job.
    GcsTransfer,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Names {
    /// As the engine would: shared/, taskowned/ and the snapshot's own folder.
    Engine,
    /// By their whole old keys below shared/FORK_ID, for copiers that can only put a prefix before a
    /// key. All references become absolute.
    WholeKeys,
}

impl Args {
    /// Does it make a picture?
    pub(super) fn draws(&self) -> bool {
        self.workers.is_some()
    }
}

/// What to fork, and where to: shared by `plan` and `fork`.
#[derive(Debug, Clone, clap::Args)]
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
    let mut request = args.what.request()?;
    if args.export.is_some() || matches!(args.names, Names::WholeKeys) {
        request.naming = Naming::WholeKeys;
    }
    let prices = args.prices.as_deref().map(read_prices).transpose()?;
    let planned = fork::plan(stores, &request, ui).await?;
    let Some(workers) = args.workers else {
        return shown(&planned, stores, ui).await;
    };
    let out = args.out.as_deref().map(location::parse).transpose()?;
    if let Some(at) = &out {
        refuse_inside(at, &planned)?;
    }
    let cost = CostModel::default();
    let plan = match args.to_give_up {
        true => fork::plan_unseen(&planned, workers, &cost)?,
        false => fork::plan_workers(stores, &planned, workers, &cost, ui).await?,
    };
    // A plan of a million objects is large enough once.
    drop(planned);
    let mut export = None;
    if let (Some(kind), Some(at)) = (args.export, &args.manifest) {
        let at = location::parse(at)?;
        let kind = match kind {
            For::S3Batch => ExportKind::S3Batch,
            For::GcsTransfer => ExportKind::GcsTransfer,
        };
        let exported = fork::export(&plan, kind, &at)?;
        fork::write_new(stores, &at, exported.manifest.clone().into()).await?;
        export = Some((at, exported));
    }
    if let Some(at) = &out {
        fork::write_plan(stores, at, &plan).await?;
    }
    let report = WorkersReport {
        estimate: estimate(&plan, &cost, prices.as_ref()),
        plan,
        out,
        export,
        to_give_up: args.to_give_up,
    };
    Ok(Output::drawn(
        ui.format(),
        exit::DONE,
        || workers_text(&report),
        || workers_json(&report),
        || Some(workers_svg(&report)),
    ))
}

/// The plan of a fork by one process, and what it would find at its destination.
pub(super) async fn shown(planned: &PlannedFork, stores: &Stores, ui: &Ui) -> Result<Output> {
    let outlook = fork::look_ahead(stores, planned, ui).await?;
    Ok(Output::of(
        ui.format(),
        exit::DONE,
        || plan_text(&planned.plan, outlook),
        || plan_json(&planned.plan, outlook),
    ))
}

/// A plan in the folder of a snapshot would be taken for a part of it.
fn refuse_inside(out: &Location, planned: &PlannedFork) -> Result<()> {
    let plan = &planned.plan;
    match [&plan.source, &plan.snapshot]
        .iter()
        .find(|snapshot| snapshot.contains(out))
    {
        None => Ok(()),
        Some(snapshot) => Err(Error::invalid(format!(
            "the plan would lie in the snapshot {snapshot}"
        ))
        .at(out)
        .hint("write it to a place of its own")),
    }
}

fn read_prices(file: &str) -> Result<PriceTable> {
    let bytes = std::fs::read(file).map_err(|e| {
        Error::new(ErrorKind::NotFound, e.to_string())
            .during("read")
            .at(file)
    })?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Error::invalid(format!("this is no table of prices: {e}"))
            .during("read")
            .at(file)
            .hint("`forkpoint plan --help` shows one")
    })
}
