//! What a plan will take: objects, bytes, requests, time, money. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::store::Method;

use super::cost::{CostModel, NANOSECONDS, PriceTable};
use super::restore_plan::RestorePlan;

/// Bytes in a GiB.
const GIBIBYTE: f64 = 1_073_741_824.0;

/// What the tasks of one method take together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MethodEstimate {
    /// Objects.
    pub objects: u64,
    /// Bytes that are copied.
    pub bytes: u64,
    /// Requests that read.
    pub read_requests: u64,
    /// Requests that write or copy.
    pub write_requests: u64,
    /// Time of all objects one after another, in seconds.
    pub seconds: f64,
    /// Money, if the price table has the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<f64>,
}

/// What one worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerEstimate {
    /// Its number.
    pub worker: u32,
    /// Its time if it does one object after another, in seconds.
    pub seconds: f64,
}

/// What a plan takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Objects.
    pub objects: u64,
    /// Bytes that are copied.
    pub bytes: u64,
    /// By method.
    pub methods: BTreeMap<Method, MethodEstimate>,
    /// By worker, in the order of the plan.
    pub workers: Vec<WorkerEstimate>,
    /// Until the slowest worker is done, in seconds.
    pub seconds: f64,
    /// Time of all objects one after another, in seconds.
    pub total_seconds: f64,
    /// Money for everything; none without a price for each method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<f64>,
    /// Its currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / NANOSECONDS as f64
}

/// Estimates a plan. There are no built-in prices: without a table there is no money.
pub fn estimate(plan: &RestorePlan, cost: &CostModel, prices: Option<&PriceTable>) -> Estimate {
    let mut methods: BTreeMap<Method, MethodEstimate> = BTreeMap::new();
    let mut bytes = 0u64;
    for task in &plan.tasks {
        let price = cost.of(task.duplicate.method);
        let copied = match task.ranges.is_empty() {
            true => task.duplicate.size,
            false => task.ranges.iter().map(|r| r.length).sum(),
        };
        let ranges = (task.ranges.len() as u64).max(1) - 1;
        bytes = bytes.saturating_add(copied);
        let sum = methods.entry(task.duplicate.method).or_default();
        sum.objects += 1;
        sum.bytes = sum.bytes.saturating_add(copied);
        sum.read_requests += price.read_requests(copied);
        sum.write_requests += price.write_requests(copied) + ranges;
        sum.seconds += seconds(task.cost_ns);
    }
    let mut money = prices.map(|_| 0.0);
    for (method, sum) in &mut methods {
        sum.money = prices.and_then(|p| p.methods.get(method)).map(|price| {
            sum.read_requests as f64 / 1000.0 * price.thousand_reads
                + sum.write_requests as f64 / 1000.0 * price.thousand_writes
                + sum.bytes as f64 / GIBIBYTE * price.gibibyte
        });
        money = money.zip(sum.money).map(|(all, own)| all + own);
    }
    Estimate {
        objects: plan.tasks.len() as u64,
        bytes,
        total_seconds: methods.values().map(|m| m.seconds).sum(),
        methods,
        workers: plan
            .workers
            .iter()
            .map(|load| WorkerEstimate {
                worker: load.worker,
                seconds: seconds(load.cost_ns),
            })
            .collect(),
        seconds: seconds(plan.balance.slowest_ns),
        money,
        currency: prices.map(|p| p.currency.clone()),
    }
}
