//! Cleaning a root: a plan that a person can read first, and a second step that deletes what is in the
//! plan and still dead.
//!
//! The recipe, each part of which an incident somewhere has taught: list before reading references;
//! classify everything before anything goes; stop at any missing evidence; name explicit keys; mark,
//! wait, look again, delete; commit objects first, so that what is half deleted is no snapshot; close
//! the ledger last.

mod apply;
mod marks;
mod plan;

pub(crate) use apply::apply_once;
pub use apply::{
    ApplyOptions, ApplyReport, GRACE_MS, LEASE_MS, Left, SpareReason, Status, apply_plan,
};
pub(crate) use marks::remove_ended;
pub use plan::{
    CleanPlan, GoingSnapshot, PLAN_VERSION, PlanEntry, PlanHeader, PlanSource, plan_clean,
};
