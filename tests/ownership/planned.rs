//! A fork on the fault server that is planned, and that nobody has begun.

use crate::fault::FaultServer;
use crate::support::{at, synthetic};
use forkpoint::fork::{ForkRequest, plan, plan_workers};
use forkpoint::progress::Silent;
use forkpoint::restore::{CostModel, RestorePlan};
use forkpoint::store::Location;

pub(crate) struct Planned {
    pub(crate) server: FaultServer,
    pub(crate) snapshot: Location,
    pub(crate) target: Location,
    pub(crate) plan: RestorePlan,
}

impl Planned {
    pub(crate) async fn new(objects: usize, workers: u32) -> Planned {
        let server = FaultServer::start().await;
        let stores = server.stores();
        let snapshot = synthetic::lay(&stores, &at("s3://one/original"), objects, 50).await;
        let target = at("s3://two/fork");
        let request = ForkRequest::new(snapshot.clone(), target.clone());
        let planned = plan(&stores, &request, &Silent).await.unwrap();
        let cost = CostModel::default();
        let plan = plan_workers(&stores, &planned, workers, &cost, &Silent).await;
        Planned {
            server,
            snapshot,
            target,
            plan: plan.unwrap(),
        }
    }
}
