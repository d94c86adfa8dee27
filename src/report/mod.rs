//! Views: one result value, two printers. No decisions, no I/O.
//!
//! The JSON documents carry `"version": 1`; fields are added to a version, never changed or removed.

mod balance;
mod balance_svg;
mod duplicate;
mod fork;
mod plan;
mod probe;
mod run;
mod show;
mod text;
mod uploads;
mod verify;
mod workers;

pub use balance_svg::workers_svg;
pub use duplicate::{duplicate_json, duplicate_text, tree_json, tree_text};
pub use fork::{fork_json, fork_text};
pub use plan::{plan_json, plan_text};
pub use probe::{probe_json, probe_text};
pub use run::{
    abandon_json, abandon_text, commit_json, commit_text, left_json, left_text, run_json, run_text,
};
pub use show::{ShowReport, show_json, show_text};
pub use text::human_bytes;
pub use uploads::{uploads_json, uploads_text};
pub use verify::{verify_json, verify_text};
pub use workers::{WorkersReport, workers_json, workers_text};
