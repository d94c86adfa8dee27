//! Planning: which object is duplicated to where and by whom, so that a new snapshot or a restored
//! job stands alone; running the plan; proving the result.
//!
//! There are two kinds of plans. [`plan_fork`] duplicates everything, in one process.
//! [`plan_restore`] plans for a job as a whole: [`assign_state`] finds out which subtasks get which
//! state, each object that must be duplicated goes to one of those that hold it, and [`balance`]
//! chooses which one so that the slowest worker is done soonest. Both name the duplicates by
//! [`Layout`]. Decisions are pure functions that return their reasons; only [`execute`]
//! does I/O.

mod attempt;
mod balance;
mod cost;
mod destination;
mod distribute;
mod eligible;
mod estimate;
mod execute;
mod holders;
mod independence;
mod mode;
mod need;
mod operator_state;
mod outcome;
mod overlap;
mod plan;
mod planner;
mod request;
mod rescale;
mod restore_plan;
mod retry;
mod segments;
mod slice;
mod start_of_range;
mod terms;

pub use attempt::Attempt;
pub(crate) use attempt::{give_up, give_up_unused, ways_on};
pub use balance::{Balanced, BoundReason, WorkerReason, Workload, balance};
pub use cost::{CostModel, MethodCost, MethodPrice, NANOSECONDS, PriceTable};
pub use destination::{ForkId, Layout, Naming};
pub use distribute::{distribute, unassigned};
pub use estimate::{Estimate, MethodEstimate, WorkerEstimate, estimate};
pub use execute::{ExecuteOptions, Executed, execute};
pub(crate) use execute::{execute_after, look_for_finished};
pub use holders::{Assignment, assign_state};
pub use independence::{Violation, find_violations};
pub use mode::{BackendCapability, Execution, TargetJob, TargetOperator};
pub use need::{DuplicateReason, SkipReason};
pub use overlap::{Ground, refuse_overlap};
pub use plan::{FolderMove, ForkPlan, LeftBehind, PLAN_VERSION, Task, places_of, plan_fork};
pub use planner::plan_restore;
pub use request::{ObjectFacts, RestoreRequest};
pub use rescale::{ChannelMapper, default_max_parallelism, key_groups_of, subtask_of, subtasks_of};
pub use restore_plan::{
    BalanceReport, DroppedOperator, HolderOfTask, ImbalanceReason, KeepReason, Kept, LiveRange,
    RESTORE_PLAN_VERSION, RestorePlan, RestoreTask, Skipped, SourceFate, StartOfRange, WorkerLoad,
};
pub use retry::{Evidence, TaskState, has_changed, judge, redistribute};
pub use slice::Slice;
pub use terms::{Done, ForkTerms};
