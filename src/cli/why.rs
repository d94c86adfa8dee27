//! `forkpoint why`.

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{Answer, Lineage, judge, judge_object, root_of};
use crate::report::{object_json, object_text, why_json, why_text};
use crate::snapshot::format_of;
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit, location};

/// May this snapshot or object go? Says what needs it, what is not known, what deletion would free and
/// what would change the answer. Reads every `_metadata` below the roots, writes nothing.
///
/// Exit code 0: deletable; 3: kept; 4: unknown, evidence is missing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot's folder, such as s3://prod/ckpt/3f2a.../chk-42, or an object.
    what: String,
    /// Where jobs keep their checkpoints. Left out: the folder above that of the snapshot's job. May be
    /// given more than once.
    #[arg(long, value_name = "ROOT")]
    root: Vec<String>,
    #[command(flatten)]
    also: Also,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let mut what = location::parse(&args.what)?;
    if format_of(what.name()).is_some()
        && let Some(folder) = what.parent()
    {
        what = folder;
    }
    let what = stores.real(&what).await?;
    let roots = match args.root.is_empty() {
        true => vec![root_of(&what)],
        false => parse_all(&args.root)?,
    };
    let looked = args.also.look(stores, ui, &roots).await?;
    let survey = &looked.survey;
    if !survey.roots.iter().any(|root| root.contains(&what)) {
        return Err(Error::invalid("it lies below none of the roots")
            .at(&what)
            .hint("name the root that holds it with --root"));
    }
    let lineage = Lineage::new(survey);
    if let Some(verdict) = survey
        .find(&what)
        .and_then(|n| judge(&lineage, n, survey.taken_at))
    {
        return Ok(Output {
            text: why_text(&verdict),
            json: why_json(&verdict),
            svg: None,
            code: code(verdict.answer),
        });
    }
    if let Some(verdict) = survey
        .names
        .find(&what)
        .and_then(|id| judge_object(&lineage, id))
    {
        return Ok(Output {
            text: object_text(&verdict),
            json: object_json(&verdict),
            svg: None,
            code: code(verdict.answer),
        });
    }
    match survey
        .missing
        .iter()
        .find(|m| what.contains(&m.location) || m.location.contains(&what))
    {
        Some(missing) => Err(Error::new(ErrorKind::Incomplete, missing.to_string())
            .at(&what)
            .hint(missing.reason.next_step())),
        None => Err(
            Error::new(ErrorKind::NotFound, "no snapshot and no object is here")
                .at(&what)
                .hint("name the folder that holds `_metadata`, such as .../chk-42, or one object"),
        ),
    }
}

fn code(answer: Answer) -> u8 {
    match answer {
        Answer::Deletable => exit::DONE,
        Answer::Kept => exit::REFUSED,
        Answer::Unknown => exit::INCOMPLETE,
    }
}
