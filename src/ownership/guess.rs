//! Where to look when nobody has named the roots, and what that proves.

use futures::StreamExt;

use crate::snapshot::Kind;
use crate::store::Location;

use super::access::Access;
use super::layout::{common_root, root_of, wider_root_of};

/// From where the users of a snapshot or an object are seen, as far as its name tells: where it lies in no job's folder,
/// one folder higher, if anything can be seen there. One request at most.
pub async fn guess_root(access: &dyn Access, what: &Location) -> Location {
    let root = root_of(what);
    let Some(wider) = wider_root_of(what) else {
        return root;
    };
    match access.list(&wider) {
        Ok(mut listing) => match listing.next().await {
            Some(Ok(_)) => wider,
            _ => root,
        },
        Err(_) => root,
    }
}

/// True for a snapshot of which guessed roots never prove that nobody uses it: a savepoint, and a checkpoint that lies
/// in no folder named by a job id, such as a fork. Jobs that were started from one may keep their checkpoints anywhere.
pub fn needs_named_roots(directory: &Location, kind: Kind) -> bool {
    kind != Kind::Checkpoint || !lies_in_job(directory)
}

/// True for what lies in a folder named by a job id.
pub fn lies_in_job(at: &Location) -> bool {
    common_root(at) != *at
}
