//! `forkpoint clean`.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::ownership::clean::{
    ApplyOptions, ApplyReport, CleanPlan, PlanSource, Status, apply_plan, plan_clean,
};
use crate::ownership::{Access, CleanPolicy, KeepRule, Lineage, parse_millis};
use crate::progress::Cancel;
use crate::report::{applied_json, applied_text, clean_json, clean_text};
use crate::store::{Provider, StagedFile, Stores};

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit, interrupt, location};

/// Delete snapshots that no rule keeps, and orphans, in two steps: write a plan, read it, apply it.
///
/// Without --apply nothing is deleted: every object is classified, and --out writes the plan. With --apply
/// exactly the objects of that plan are deleted, as far as they are still dead when they are looked at
/// again after the grace period.
///
/// It decides object by object: of a snapshot that the rules let go it deletes what no snapshot that stays needs,
/// so that one may go of which `why` says that it is kept. And it keeps what `why` calls deletable if a rule, the
/// minimum age, or its being the newest of a job at work says so: `why SNAPSHOT --keep RULE` tells for one.
///
/// Exit codes: 3 more objects than --max-delete; 4 evidence is missing, nothing was deleted; 6 the grace
/// period is not over or objects are left: apply the same plan again, or make a new one, as the report says.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folders to clean, below which jobs keep their checkpoints. Not with --apply: the plan names them.
    #[arg(
        required_unless_present = "apply",
        conflicts_with = "apply",
        value_name = "ROOT"
    )]
    roots: Vec<String>,
    #[command(flatten)]
    also: Also,
    /// What stays of each job: last=N, within=TIME, every=TIME, named=PATTERN; for savepoints, which stay
    /// unless a rule speaks of them, `savepoint:last=N`. What any rule keeps stays. Without a rule only
    /// orphans go.
    #[arg(long, value_name = "RULE")]
    keep: Vec<KeepRule>,
    /// Nothing younger goes: longer than any checkpoint takes.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    min_age: String,
    /// Write the plan into this file.
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    out: Option<PathBuf>,
    /// Apply the plan in this file. What is deleted and what is kept was decided when it was made: rules go with the
    /// making of a plan.
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["keep", "min_age", "also"])]
    apply: Option<PathBuf>,
    /// Between the first --apply and the second look at what shall go.
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "apply")]
    grace: String,
    /// Wait for the grace period instead of ending with exit code 6.
    #[arg(long, requires = "apply")]
    wait: bool,
    /// Refuse to delete more objects than this.
    #[arg(long, value_name = "N")]
    max_delete: Option<u64>,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    match &args.apply {
        Some(plan) => apply(args, plan, stores, ui).await,
        None => plan(args, stores, ui).await,
    }
}

async fn plan(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let policy = CleanPolicy {
        keep: args.keep.clone(),
        min_age_ms: parse_millis(&args.min_age)?,
    };
    let looked = args.also.look(stores, ui, &parse_all(&args.roots)?).await?;
    let lineage = Lineage::new(&looked.survey);
    let also = args.also.locations()?;
    let plan = plan_clean(
        &lineage,
        &looked.roots,
        &also,
        &policy,
        looked.survey.taken_at,
    );
    let too_many = args
        .max_delete
        .is_some_and(|most| plan.header.objects > most);
    if too_many {
        ui.warn(&format!(
            "the plan would delete {} objects, more than the {} that are allowed: it is not written",
            plan.header.objects,
            args.max_delete.unwrap_or_default()
        ));
    }
    let blocked = !plan.missing.is_empty();
    if let (Some(path), false) = (&args.out, blocked || too_many) {
        write_plan(&plan, &lineage, path).map_err(|e| e.at(path.display()))?;
    }
    let code = match (blocked, too_many) {
        (true, _) => exit::INCOMPLETE,
        (_, true) => exit::REFUSED,
        _ => exit::DONE,
    };
    Ok(Output::of(
        ui.format(),
        code,
        || clean_text(&plan),
        || clean_json(&plan),
    ))
}

/// Writes the plan as a whole or not at all: nobody sees the file before it is.
fn write_plan(plan: &CleanPlan, lineage: &Lineage<'_>, path: &Path) -> Result<()> {
    const DOING: &str = "write the plan";
    let text = path
        .to_str()
        .ok_or_else(|| Error::invalid("the path is not UTF-8").during(DOING))?;
    let at = location::parse(text)?;
    if at.provider() != Provider::Local {
        return Err(Error::invalid("the plan of a clean is a file of this machine").during(DOING));
    }
    let taken = |e: Error| match e.kind() {
        ErrorKind::AlreadyExists => Error::refused("a file is already there")
            .during(DOING)
            .hint("a plan is never overwritten, it may be half applied: choose another name"),
        _ => e.during(DOING),
    };
    let mut file = StagedFile::begin(&at).map_err(taken)?;
    plan.write(lineage, &mut BufWriter::new(file.file()))?;
    file.publish(&at, true, true).map_err(taken)?;
    Ok(())
}

async fn apply(args: &Args, plan: &std::path::Path, stores: &Stores, ui: &Ui) -> Result<Output> {
    let plan = PlanSource::File(plan.to_path_buf());
    let options = ApplyOptions {
        grace_ms: parse_millis(&args.grace)?,
        max_delete: args.max_delete,
    };
    let cancel = Cancel::default();
    let watch = tokio::spawn(interrupt::stop_on_interrupt(cancel.clone()));
    let result = apply_until_done(args.wait, &plan, &options, stores, ui, &cancel).await;
    watch.abort();
    let report = result?;
    let code = if report.is_unfinished() || !report.spared.is_empty() {
        exit::RESUMABLE
    } else {
        exit::DONE
    };
    Ok(Output::of(
        ui.format(),
        code,
        || applied_text(&report),
        || applied_json(&report),
    ))
}

async fn apply_until_done(
    wait: bool,
    plan: &PlanSource,
    options: &ApplyOptions,
    stores: &Stores,
    ui: &Ui,
    cancel: &Cancel,
) -> Result<ApplyReport> {
    loop {
        let report = apply_plan(stores, plan, options, ui, cancel).await?;
        match report.status {
            Status::Waiting { until_unix_ms } if wait && !cancel.is_cancelled() => {
                let left = Duration::from_millis(until_unix_ms.saturating_sub(stores.now()));
                tokio::select! {
                    () = clock::sleep(left) => {}
                    () = cancel.cancelled() => return Ok(report),
                }
            }
            _ => return Ok(report),
        }
    }
}
