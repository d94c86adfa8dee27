//! Views: one result value, two printers. No decisions, no I/O.
//!
//! The JSON documents carry `"version": 1`; fields are added to a version, never changed or removed.

mod duplicate;
mod fork;
mod plan;
mod probe;
mod show;
mod text;
mod uploads;
mod verify;

pub use duplicate::{duplicate_json, duplicate_text, tree_json, tree_text};
pub use fork::{fork_json, fork_text};
pub use plan::{plan_json, plan_text};
pub use probe::{probe_json, probe_text};
pub use show::{ShowReport, show_json, show_text};
pub use text::human_bytes;
pub use uploads::{uploads_json, uploads_text};
pub use verify::{verify_json, verify_text};
