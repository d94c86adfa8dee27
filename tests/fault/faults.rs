//! The knobs: how the server misbehaves. Changeable while it runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Semaphore;

use super::log::{Kind, Service};

/// How one request goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// This status with this error code, without doing anything.
    Fail { status: u16, code: &'static str },
    /// `200 OK` with this error code in the body, without doing anything.
    FailInside { code: &'static str },
    /// The connection is cut, without doing anything.
    Reset,
    /// It is done, and the connection is cut: before the answer, or after this many bytes of its
    /// body.
    LoseReply { after: Option<u64> },
    /// It is done, and then answered with this status and error code all the same.
    DoneButFail { status: u16, code: &'static str },
    /// The byte of the object at this position is served wrong.
    Flip { at: u64 },
    /// A byte of what is sent changes on its way to the server.
    Damage,
    /// It takes this much longer.
    Delay(Duration),
    /// It waits at this gate before it is done.
    Wait(Gate),
    /// A copy waits at this gate in its middle: source and conditions have been looked at, nothing is written. With a
    /// `trickle`, a space comes that often meanwhile, after `200 OK`.
    Hold {
        gate: Gate,
        trickle: Option<Duration>,
    },
    /// A copy takes this much longer; meanwhile a space comes every `every`, after `200 OK`.
    Trickle { every: Duration, total: Duration },
}

/// Where a request waits until it is let through. Clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<(Semaphore, Semaphore)>);

impl Gate {
    pub fn new() -> Gate {
        Gate(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// Ends when a request has come.
    pub async fn reached(&self) {
        let at_most = Duration::from_secs(60);
        let come = tokio::time::timeout(at_most, self.0.0.acquire()).await;
        come.expect("no request has come to the gate for a minute")
            .unwrap()
            .forget();
    }

    /// Lets one request through.
    pub fn open(&self) {
        self.0.1.add_permits(1);
    }

    /// Lets all through, those that wait and those that come.
    pub fn open_for_good(&self) {
        self.0.1.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub async fn wait(&self) {
        self.0.0.add_permits(1);
        self.0.1.acquire().await.unwrap().forget();
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Gate) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gate {}

/// When an [`Action`] is taken. Without limits: always.
#[derive(Debug, Clone)]
pub struct Rule {
    kinds: Vec<Kind>,
    service: Option<Service>,
    prefix: String,
    left: Option<u64>,
    skipped: u64,
    chance: f64,
    action: Action,
}

impl Rule {
    /// A rule for every request.
    pub fn always(action: Action) -> Rule {
        Rule {
            kinds: Vec::new(),
            service: None,
            prefix: String::new(),
            left: None,
            skipped: 0,
            chance: 1.0,
            action,
        }
    }

    /// A rule for requests of one kind.
    pub fn on(kind: Kind, action: Action) -> Rule {
        Rule::always(action).and_on(kind)
    }

    #[must_use]
    pub fn and_on(mut self, kind: Kind) -> Rule {
        self.kinds.push(kind);
        self
    }

    #[must_use]
    pub fn of(mut self, service: Service) -> Rule {
        self.service = Some(service);
        self
    }

    /// Only for keys that begin so; listings of a prefix that does, in a rule for listings.
    #[must_use]
    pub fn for_keys(mut self, prefix: &str) -> Rule {
        self.prefix = prefix.to_string();
        self
    }

    /// Only for the next `n` requests that it fits.
    #[must_use]
    pub fn times(mut self, n: u64) -> Rule {
        self.left = Some(n);
        self
    }

    /// The first `n` that it fits go well.
    #[must_use]
    pub fn after(mut self, n: u64) -> Rule {
        self.skipped = n;
        self
    }

    /// With this probability.
    #[must_use]
    pub fn with_chance(mut self, chance: f64) -> Rule {
        self.chance = chance;
        self
    }

    fn fits(&self, service: Service, kind: Kind, key: &str) -> bool {
        self.left != Some(0)
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
            && self.service.is_none_or(|s| s == service)
            && key.starts_with(&self.prefix)
            && (self.prefix.is_empty() || !self.kinds.is_empty() || kind != Kind::List)
    }
}

/// How a pending Azure copy ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingEnd {
    Success,
    Failed,
    Aborted,
}

/// Azure answers a copy with `202` and `pending`; the blob has length 0 meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    pub lasts: Duration,
    /// It ends no sooner than after this many looks at its status.
    pub polls: u32,
    pub end: PendingEnd,
}

impl Pending {
    pub fn of(lasts: Duration, end: PendingEnd) -> Pending {
        Pending {
            lasts,
            polls: 0,
            end,
        }
    }
}

/// All knobs. [`Faults::default`] is a server that behaves.
#[derive(Debug)]
pub struct Faults {
    /// Every request takes at least this long.
    pub latency: Duration,
    /// A copy takes as long as its bytes take at this rate.
    pub copy_bytes_per_second: Option<u64>,
    /// Requests per second and bucket; those above are answered with 503.
    pub cap: Option<u32>,
    /// Seconds that a refused request is told to wait.
    pub retry_after: Option<u64>,
    /// Copies overwrite whatever conditions on the destination say, as MinIO does.
    pub ignore_destination_conditions: bool,
    /// Plain writes overwrite whatever conditions on what is there say, as some S3-compatible servers do.
    pub ignore_put_conditions: bool,
    /// Copies take the source as it is, whatever conditions on it say.
    pub ignore_source_conditions: bool,
    /// Copies of parts are answered with 501.
    pub no_part_copy: bool,
    /// A completed upload may be completed again with the same answer.
    pub complete_is_repeatable: bool,
    /// Bytes that one call of a Google rewrite moves. Google's own smallest is 1 MiB.
    pub rewrite_bytes_per_call: u64,
    /// How long a rewrite token is good for.
    pub rewrite_token_lasts: Duration,
    /// Azure copies stay pending.
    pub pending: Option<Pending>,
    rules: Vec<Rule>,
    chance: StdRng,
    buckets: HashMap<(Service, String), Allowance>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            latency: Duration::ZERO,
            copy_bytes_per_second: None,
            cap: None,
            retry_after: None,
            ignore_destination_conditions: false,
            ignore_put_conditions: false,
            ignore_source_conditions: false,
            no_part_copy: false,
            complete_is_repeatable: false,
            rewrite_bytes_per_call: u64::MAX,
            rewrite_token_lasts: Duration::from_secs(7 * 24 * 3600),
            pending: None,
            rules: Vec::new(),
            chance: StdRng::seed_from_u64(0),
            buckets: HashMap::new(),
        }
    }
}

/// A token bucket that holds a tenth of a second's requests.
#[derive(Debug)]
struct Allowance {
    tokens: f64,
    filled: Instant,
}

/// What happens to one request.
#[derive(Debug, Default)]
pub struct Plan {
    pub latency: Duration,
    /// Refused for coming too fast, and how long to wait before the next.
    pub throttled: Option<Option<u64>>,
    pub action: Option<Action>,
}

impl Faults {
    /// Adds a rule; of those that fit a request the first added counts.
    pub fn add(&mut self, rule: Rule) -> &mut Faults {
        self.rules.push(rule);
        self
    }

    /// Changes the rule that was added last; `false` if there is none.
    pub fn change_last(&mut self, change: impl FnOnce(Rule) -> Rule) -> bool {
        let last = self.rules.pop().map(change);
        let there = last.is_some();
        self.rules.extend(last);
        there
    }

    /// Takes all rules away.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Starts the sequence of chances anew.
    pub fn seed(&mut self, seed: u64) -> &mut Faults {
        self.chance = StdRng::seed_from_u64(seed);
        self
    }

    /// How long a copy of `bytes` takes besides everything else.
    pub fn copy_time(&self, bytes: u64) -> Duration {
        match self.copy_bytes_per_second {
            Some(rate) => Duration::from_secs_f64(bytes as f64 / rate as f64),
            None => Duration::ZERO,
        }
    }

    /// Decides about one request and counts it against its rules.
    pub fn plan(&mut self, service: Service, kind: Kind, bucket: &str, key: &str) -> Plan {
        let mut plan = Plan {
            latency: self.latency,
            ..Plan::default()
        };
        if let Some(cap) = self.cap
            && !self.admit(service, bucket, f64::from(cap))
        {
            plan.throttled = Some(self.retry_after);
            return plan;
        }
        for rule in &mut self.rules {
            if !rule.fits(service, kind, key) {
                continue;
            }
            if rule.chance < 1.0 && !self.chance.random_bool(rule.chance) {
                continue;
            }
            if rule.skipped > 0 {
                rule.skipped -= 1;
                continue;
            }
            if let Some(left) = &mut rule.left {
                *left -= 1;
            }
            plan.action = Some(rule.action.clone());
            break;
        }
        plan
    }

    fn admit(&mut self, service: Service, bucket: &str, cap: f64) -> bool {
        let now = Instant::now();
        let most = (cap / 10.0).max(1.0);
        let of_bucket = self
            .buckets
            .entry((service, bucket.to_string()))
            .or_insert(Allowance {
                tokens: most,
                filled: now,
            });
        let gained = now.duration_since(of_bucket.filled).as_secs_f64() * cap;
        of_bucket.tokens = (of_bucket.tokens + gained).min(most);
        of_bucket.filled = now;
        let admitted = of_bucket.tokens >= 1.0;
        if admitted {
            of_bucket.tokens -= 1.0;
        }
        admitted
    }
}
