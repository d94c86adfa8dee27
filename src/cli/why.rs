//! `forkpoint why`.

use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::ownership::{
    Answer, CleanPolicy, KeepRule, Lineage, MissingEvidence, MissingReason, Survey, clean_outlook,
    guess_root, judge, judge_object, lies_in_job, needs_named_roots, object_outlook, parse_millis,
};
use crate::report::{
    object_json, object_outlook_text, object_text, outlook_text, roots_text, why_json, why_text,
};
use crate::snapshot::format_of;
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit, location};

/// May this snapshot or object go? Says what needs it, what is not known, what deletion would free and
/// what would change the answer. Reads every `_metadata` below the roots, writes nothing.
///
/// `why` asks whether a snapshot can go with everything it refers to; `clean` decides object by object, and of a
/// snapshot that its rules let go deletes what no snapshot that stays needs. So one that is kept here may be deleted
/// by `clean`, and one that is deletable here may be kept by it, for its rules, --min-age, or as the newest of a job
/// at work: the last line of the answer says which, for the rules that are given.
///
/// Exit code 0: deletable; 3: kept; 4: unknown, evidence is missing; 1: the store does not answer.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot's folder, such as s3://prod/ckpt/3f2a.../chk-42, or an object.
    what: String,
    /// Where jobs keep their checkpoints. Left out: the folder above that of the snapshot's job. May be
    /// given more than once. No savepoint, and no checkpoint that lies in no folder named by a job id, such as a fork, is
    /// called deletable unless it is given: jobs that were started from one may lie anywhere.
    #[arg(long, value_name = "ROOT")]
    root: Vec<String>,
    #[command(flatten)]
    also: Also,
    /// Say what `clean` with this rule would do, as in its --keep. May be given more than once.
    #[arg(long, value_name = "RULE")]
    keep: Vec<KeepRule>,
    /// And with this --min-age.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    min_age: String,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let policy = CleanPolicy {
        keep: args.keep.clone(),
        min_age_ms: parse_millis(&args.min_age)?,
    };
    let mut what = location::parse(&args.what)?;
    if format_of(what.name()).is_some()
        && let Some(folder) = what.parent()
    {
        what = folder;
    }
    let what = stores.real(&what).await?;
    let roots = match args.root.is_empty() {
        true => vec![guess_root(stores, &what).await],
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
    let (roots, now) = (&looked.roots, survey.taken_at);
    let guessed = args.root.is_empty();
    let seen = || roots_text(&survey.roots, guessed);
    if let Some(node) = survey.find(&what)
        && let Some(verdict) = judge(&lineage, node, now)
    {
        let outlook = clean_outlook(&lineage, roots, node, &policy, now);
        let said = outlook.as_ref().map_or_else(String::new, outlook_text);
        let unproved = survey
            .nodes
            .get(node)
            .is_some_and(|n| needs_named_roots(&n.directory, n.kind));
        let verdict = match guessed && unproved {
            true => verdict.without(MissingEvidence::new(what, MissingReason::GuessedRoots, "")),
            false => verdict,
        };
        return Ok(Output {
            text: why_text(&verdict) + &seen() + &said,
            json: document(why_json(&verdict), &outlook, survey, guessed),
            svg: None,
            code: code(verdict.answer),
        });
    }
    if let Some(id) = survey.names.find(&what)
        && let Some(verdict) = judge_object(&lineage, id)
    {
        let outlook = object_outlook(&lineage, roots, id, &policy, now);
        let said = outlook
            .as_ref()
            .map_or_else(String::new, object_outlook_text);
        let verdict = match guessed && !lies_in_job(&what) {
            true => verdict.without(MissingEvidence::new(what, MissingReason::GuessedRoots, "")),
            false => verdict,
        };
        return Ok(Output {
            text: object_text(&verdict) + &seen() + &said,
            json: document(object_json(&verdict), &outlook, survey, guessed),
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
            .hint(missing.next_step().into_owned())),
        None => Err(
            Error::new(ErrorKind::NotFound, "no snapshot and no object is here")
                .at(&what)
                .hint("name the folder that holds `_metadata`, such as .../chk-42, or one object"),
        ),
    }
}

/// The answer with what a clean would do, and where was looked.
fn document(
    mut document: Value,
    outlook: &impl Serialize,
    survey: &Survey,
    guessed: bool,
) -> Value {
    if let (Value::Object(document), Ok(outlook)) = (&mut document, serde_json::to_value(outlook)) {
        document.insert("clean".into(), outlook);
        document.insert("roots".into(), json!(survey.roots));
        document.insert("roots_guessed".into(), guessed.into());
    }
    document
}

fn code(answer: Answer) -> u8 {
    match answer {
        Answer::Deletable => exit::DONE,
        Answer::Kept => exit::REFUSED,
        Answer::Unknown => exit::INCOMPLETE,
    }
}
