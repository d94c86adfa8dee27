//! Planning: which object is duplicated to where, so that a new snapshot stands alone; running the
//! plan; proving the result.

mod attempt;
mod destination;
mod execute;
mod independence;
mod overlap;
mod plan;

pub use attempt::Attempt;
pub use destination::{ForkId, Layout};
pub use execute::{ExecuteOptions, Executed, execute};
pub use independence::{Violation, find_violations};
pub use overlap::{Ground, refuse_overlap};
pub use plan::{FolderMove, ForkPlan, LeftBehind, PLAN_VERSION, Task, plan_fork};
