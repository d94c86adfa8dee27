//! Planning: which object is duplicated to where, so that a new snapshot stands alone; running the
//! plan; proving the result.

mod balance;
mod cost;
mod destination;
mod estimate;
mod execute;
mod holders;
mod independence;
mod journal;
mod mode;
mod operator_state;
mod plan;
mod planner;
mod rescale;
mod restore_plan;

pub use balance::{Balanced, BoundReason, WorkerReason, Workload, balance};
pub use destination::{ForkId, Layout};
pub use execute::{ExecuteOptions, Executed, execute};
pub use holders::{Assignment, assign_state};
pub use independence::{Violation, find_violations};
pub use journal::Journal;
pub use mode::{BackendCapability, Execution, RestoreMode, TargetJob, TargetOperator};
pub use plan::{FolderMove, ForkPlan, LeftBehind, PLAN_VERSION, Task, plan_fork};
pub use rescale::{ChannelMapper, default_max_parallelism, key_groups_of, subtask_of, subtasks_of};
