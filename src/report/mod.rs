//! Views: one result value, two printers. No decisions, no I/O.
//!
//! The JSON documents carry `"version": 1`; fields are added to a version, never changed or removed.

mod balance;
mod balance_svg;
#[cfg(all(feature = "blob", unix))]
mod blob;
mod claim;
mod clean;
mod duplicate;
mod fork;
mod lineage;
mod lineage_svg;
mod ls;
mod plan;
mod probe;
mod run;
mod show;
mod text;
mod uploads;
mod usage;
mod verify;
mod why;
mod workers;

pub use balance_svg::workers_svg;
#[cfg(all(feature = "blob", unix))]
pub use blob::*;
pub use claim::{
    claim_json, claim_text, pins_json, pins_text, released_json, released_text, unpinned_json,
    unpinned_text,
};
pub use clean::{applied_json, applied_text, clean_json, clean_text};
pub use duplicate::{
    duplicate_json, duplicate_text, reused_json, reused_text, tree_json, tree_text,
};
pub use fork::{fork_json, fork_text};
pub use lineage::{lineage_json, lineage_text};
pub use lineage_svg::lineage_svg;
pub use ls::{ls_json, ls_text};
pub use plan::{plan_json, plan_text};
pub use probe::{probe_json, probe_text};
pub use run::{
    abandon_json, abandon_text, commit_json, commit_text, left_json, left_text, run_json, run_text,
};
pub use show::{ShowReport, show_json, show_text};
#[cfg(all(feature = "blob", feature = "cli", unix))]
pub(crate) use text::count;
pub use text::human_bytes;
pub use uploads::{uploads_json, uploads_text};
pub use usage::{usage_json, usage_text};
pub use verify::{REPAIR, verify_json, verify_text};
pub use why::{
    object_json, object_outlook_text, object_text, outlook_text, roots_text, why_json, why_text,
};
pub use workers::{WorkersReport, workers_json, workers_text};
