//! What `forkpoint verify` prints.

use serde_json::{Value, json};

use crate::verify::{Compared, VerifyReport};

use super::text::{count, human_bytes, name};

/// What helps where an object is not as its original.
pub const REPAIR: &str = "if the original is the one that is intact, `forkpoint duplicate --overwrite ORIGINAL_OBJECT OBJECT` \
     repairs an object; end jobs that use it first";

/// The findings as a document.
pub fn verify_json(report: &VerifyReport) -> Value {
    json!({
        "version": 1,
        "snapshot": report.snapshot,
        "objects": report.objects,
        "bytes": report.bytes,
        "problems": report.problems,
        "compared": report.compared,
    })
}

/// The findings for people.
pub fn verify_text(report: &VerifyReport) -> String {
    let sum = format!(
        "{}\n  {} besides the metadata, {}",
        name(&report.snapshot),
        count(report.objects, "object", "objects"),
        human_bytes(report.bytes)
    );
    if report.problems.is_empty() {
        let bytes = match &report.compared {
            Compared::Nothing => String::new(),
            Compared::Digests => ", and every byte as the manifest's digests say".into(),
            Compared::Original(at) => format!(", and every byte as in {}", name(at)),
        };
        return format!("{sum}: all there, with the sizes the metadata says{bytes}\n");
    }
    let mut text = format!(
        "{sum}: {}\n",
        count(report.problems.len() as u64, "problem", "problems")
    );
    for problem in &report.problems {
        text.push_str(&format!(
            "  {}\n    {}\n",
            name(&problem.location),
            name(&problem.problem)
        ));
    }
    if let Compared::Original(_) = report.compared {
        text.push_str(&format!("{REPAIR}\n"));
    }
    text
}
