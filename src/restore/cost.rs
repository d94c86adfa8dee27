//! What a duplicate costs: time, requests, money. The numbers come from the caller; the defaults
//! are orders of magnitude and good for balancing, not for promises.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::store::Method;

/// Nanoseconds in a second.
pub const NANOSECONDS: u64 = 1_000_000_000;
/// Bytes that the relay reads and writes at a time, by default.
const PART_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes that one part of a copy in parts has, by default.
const COPY_PART_BYTES: u64 = 256 * 1024 * 1024;

/// What one method costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodCost {
    /// For each object, however small, in nanoseconds.
    pub latency_ns: u64,
    /// How fast bytes move once they do. 0: no bytes move at all.
    pub bytes_per_second: u64,
    /// Requests that read, for each object: the looks at source and destination.
    pub reads: u64,
    /// Bytes that one more read request brings. 0: no byte comes through us.
    pub bytes_per_read: u64,
    /// Bytes that one write or copy request takes. 0: any number.
    pub bytes_per_write: u64,
}

impl MethodCost {
    /// The time for `bytes` of one object, in nanoseconds.
    pub fn nanoseconds(&self, bytes: u64) -> u64 {
        let moving = match self.bytes_per_second {
            0 => 0,
            rate => u128::from(bytes) * u128::from(NANOSECONDS) / u128::from(rate),
        };
        self.latency_ns
            .saturating_add(u64::try_from(moving).unwrap_or(u64::MAX))
    }

    /// Requests that read, for `bytes` of one object.
    pub fn read_requests(&self, bytes: u64) -> u64 {
        self.reads
            + bytes
                .checked_div(self.bytes_per_read)
                .map_or(0, |_| bytes.div_ceil(self.bytes_per_read).max(1))
    }

    /// Requests that write or copy, for `bytes` of one object. Those in parts have two more, which
    /// begin and complete.
    pub fn write_requests(&self, bytes: u64) -> u64 {
        match self.bytes_per_write {
            0 => 1,
            part if bytes <= part => 1,
            part => bytes.div_ceil(part) + 2,
        }
    }
}

/// What every method costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModel {
    /// By method.
    pub methods: BTreeMap<Method, MethodCost>,
    /// For methods that are not listed.
    pub other: MethodCost,
    /// Of merged files only the live ranges may be copied, packed one after another, where that
    /// is cheaper. Whoever runs the plan must then write new offsets. Otherwise each file is
    /// copied as it is, and offsets stay.
    #[serde(default)]
    pub live_ranges: bool,
}

impl CostModel {
    /// What a method costs.
    pub fn of(&self, method: Method) -> &MethodCost {
        self.methods.get(&method).unwrap_or(&self.other)
    }
}

impl Default for CostModel {
    /// Assumed, not measured: 60 ms for a request to an object store, 200 MB/s for a copy inside
    /// one, 100 MB/s through this process; constant time where no bytes move (GCS inside one
    /// location and class, reflinks).
    fn default() -> CostModel {
        const MILLISECOND: u64 = 1_000_000;
        let server = |bytes_per_second| MethodCost {
            latency_ns: 60 * MILLISECOND,
            bytes_per_second,
            reads: 2,
            bytes_per_read: 0,
            bytes_per_write: 0,
        };
        let local = |bytes_per_second| MethodCost {
            latency_ns: MILLISECOND / 10,
            ..server(bytes_per_second)
        };
        // Many parts at once, so faster; and three round trips more.
        let parts = MethodCost {
            latency_ns: 240 * MILLISECOND,
            bytes_per_second: 800_000_000,
            bytes_per_write: COPY_PART_BYTES,
            ..server(0)
        };
        let relay = MethodCost {
            latency_ns: 120 * MILLISECOND,
            bytes_per_second: 100_000_000,
            reads: 2,
            bytes_per_read: PART_BYTES,
            bytes_per_write: PART_BYTES,
        };
        CostModel {
            methods: BTreeMap::from([
                (Method::S3Copy, server(200_000_000)),
                (Method::S3PartCopy, parts),
                (Method::GcsRewrite, server(0)),
                (Method::AzureCopy, server(200_000_000)),
                (Method::LocalReflink, local(0)),
                (Method::LocalHardLink, local(0)),
                (Method::LocalCopy, local(1_000_000_000)),
                (Method::MemoryCopy, local(0)),
                (Method::Relay, relay),
            ]),
            other: relay,
            live_ranges: false,
        }
    }
}

/// What requests and moved bytes cost, for one method.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MethodPrice {
    /// A thousand requests that read.
    pub thousand_reads: f64,
    /// A thousand requests that write or copy.
    pub thousand_writes: f64,
    /// A GiB that is moved.
    pub gibibyte: f64,
}

/// Prices, which only the user knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PriceTable {
    /// The name of the currency, as it will be shown.
    pub currency: String,
    /// By method.
    pub methods: BTreeMap<Method, MethodPrice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_latency_and_bytes_over_rate() {
        let model = CostModel::default();
        let relay = model.of(Method::Relay);
        assert_eq!(relay.nanoseconds(0), 120_000_000);
        assert_eq!(relay.nanoseconds(100_000_000), 1_120_000_000);
        assert_eq!(relay.nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(
            model.of(Method::GcsRewrite).nanoseconds(1 << 40),
            60_000_000
        );
    }

    #[test]
    fn requests_are_counted_by_parts() {
        let model = CostModel::default();
        let relay = model.of(Method::Relay);
        assert_eq!((relay.read_requests(1), relay.write_requests(1)), (3, 1));
        assert_eq!((relay.read_requests(0), relay.write_requests(0)), (3, 1));
        let large = 3 * PART_BYTES - 1;
        assert_eq!(
            (relay.read_requests(large), relay.write_requests(large)),
            (5, 5)
        );
        assert_eq!(model.of(Method::S3Copy).write_requests(1 << 32), 1);
    }
}
