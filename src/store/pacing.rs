//! How many requests go to one bucket at once, and how fast: learned from its answers.
//!
//! The number in flight begins small and doubles with each clean round (slow start) until the
//! store's latency rises or it asks us to slow down; from then on it grows by a few a round. Of requests that
//! move many bytes fewer begin, as each is more work to a small server. A store
//! that says 503 or 429 is then asked at the rate at which it has just been answering, a little
//! more each moment, so that the limit is found again without running into it again and again.
//!
//! [`Learner`] decides, purely, with time as an argument; [`Pacer`] makes requests wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;

/// Shares in flight at the start: a request is one, or more if it moves many bytes.
const FIRST_LIMIT: usize = 32;
/// A request is one share for each of so many bytes...
const SHARE_BYTES: u64 = 16 * 1024 * 1024;
/// ...and at most so many.
const MOST_SHARES: usize = 4;
/// Requests in flight at most, unless set otherwise.
pub(crate) const CEILING: usize = 256;
/// Growth a round once slow start is over.
const STEP: usize = 8;
/// A round whose typical latency is above the lowest seen by this factor stops the doubling.
const LATENCY_FACTOR: f64 = 2.0;
/// The success rate is measured over this time.
const MEASURE: Duration = Duration::from_secs(1);
/// A measured rate is taken a little lower at a throttle...
const CUT: f64 = 0.95;
/// ...and grows by this factor for each clean [`GROW_EVERY`], faster while the limit is being found.
const GROWTH: f64 = 1.01;
const FIRST_GROWTH: f64 = 1.03;
/// So many cuts find the limit: the first is taken at a guess.
const FIRST_CUTS: u32 = 3;
const GROW_EVERY: Duration = Duration::from_millis(200);
/// So much of the rate that was missed may be made up for at once.
const CATCH_UP: Duration = Duration::from_millis(5);

/// What was learned of one bucket so far.
#[derive(Debug)]
pub(crate) struct Learner {
    limit: usize,
    ceiling: usize,
    doubling: bool,
    /// Shares answered in this round, and how many answers they were.
    in_round: usize,
    answers: u32,
    round_latency: Duration,
    lowest_latency: Option<Duration>,
    /// Requests a second; none until the store first asked us to slow down.
    rate: Option<f64>,
    grown: Instant,
    last_cut: Option<Instant>,
    cuts: u32,
    successes: VecDeque<Instant>,
}

impl Learner {
    /// For at most `ceiling` requests, whatever they move.
    pub(crate) fn new(now: Instant, ceiling: usize) -> Learner {
        let ceiling = ceiling.max(1).saturating_mul(MOST_SHARES);
        Learner {
            limit: FIRST_LIMIT.min(ceiling),
            ceiling,
            doubling: true,
            in_round: 0,
            answers: 0,
            round_latency: Duration::ZERO,
            lowest_latency: None,
            rate: None,
            grown: now,
            last_cut: None,
            cuts: 0,
            successes: VecDeque::new(),
        }
    }

    /// Shares that may be in flight.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// A request of so many `shares` that began at `began` was answered well at `now`.
    pub(crate) fn succeeded(&mut self, shares: usize, began: Instant, now: Instant) {
        self.successes.push_back(now);
        self.forget_old(now);
        if let Some(rate) = self.rate {
            while now.duration_since(self.grown) >= GROW_EVERY {
                self.grown += GROW_EVERY;
                let growth = if self.cuts < FIRST_CUTS {
                    FIRST_GROWTH
                } else {
                    GROWTH
                };
                self.rate = Some(self.rate.unwrap_or(rate) * growth);
            }
        }
        self.in_round += shares;
        self.answers += 1;
        self.round_latency += now.duration_since(began);
        if self.in_round >= self.limit {
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let typical = self.round_latency / self.answers.max(1);
        let lowest = self.lowest_latency.map_or(typical, |l| l.min(typical));
        self.lowest_latency = Some(lowest);
        self.in_round = 0;
        self.answers = 0;
        self.round_latency = Duration::ZERO;
        let strained = typical.as_secs_f64() > lowest.as_secs_f64() * LATENCY_FACTOR;
        if strained {
            self.doubling = false;
        } else {
            let grown = if self.doubling {
                self.limit * 2
            } else {
                self.limit + STEP
            };
            self.limit = grown.min(self.ceiling);
        }
    }

    /// A request that began at `began` was answered at `now` with "slow down". One cut per round
    /// trip: a request that was already under way at the last cut says nothing new.
    pub(crate) fn throttled(&mut self, began: Instant, now: Instant) {
        self.doubling = false;
        if self.last_cut.is_some_and(|cut| began <= cut) {
            return;
        }
        self.forget_old(now);
        let span = self
            .successes
            .front()
            .map_or(MEASURE, |first| now.duration_since(*first))
            .clamp(Duration::from_millis(50), MEASURE);
        let measured = self.successes.len() as f64 / span.as_secs_f64();
        let base = self
            .rate
            .map_or(measured, |rate| rate.min(measured.max(rate / 2.0)));
        tracing::debug!(measured, before = ?self.rate, limit = self.limit, "asked to slow down");
        self.rate = Some((base * CUT).max(1.0));
        self.last_cut = Some(now);
        self.cuts += 1;
        self.grown = now;
        self.in_round = 0;
        self.answers = 0;
        self.round_latency = Duration::ZERO;
    }

    fn forget_old(&mut self, now: Instant) {
        while self
            .successes
            .front()
            .is_some_and(|first| now.duration_since(*first) > MEASURE)
        {
            self.successes.pop_front();
        }
    }
}

/// What a request that moves so many bytes counts.
fn shares_of(bytes: u64) -> usize {
    let shares = usize::try_from(bytes.div_ceil(SHARE_BYTES)).unwrap_or(MOST_SHARES);
    shares.clamp(1, MOST_SHARES)
}

/// Makes the requests to one bucket wait for their turn.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// As many as requests may be in flight, whatever was learned.
    requests: Arc<Semaphore>,
    /// As many as shares may be in flight, as was learned.
    shares: Arc<Semaphore>,
    state: Mutex<State>,
    /// When the last request began, where a rate is kept.
    gate: tokio::sync::Mutex<Instant>,
}

#[derive(Debug)]
struct State {
    learner: Learner,
    /// Permits that exist, in use or not.
    permits: usize,
}

impl Pacer {
    pub(crate) fn new(ceiling: usize) -> Pacer {
        let now = Instant::now();
        let learner = Learner::new(now, ceiling);
        let permits = learner.limit();
        Pacer {
            requests: Arc::new(Semaphore::new(ceiling.max(1))),
            shares: Arc::new(Semaphore::new(permits)),
            state: Mutex::new(State { learner, permits }),
            gate: tokio::sync::Mutex::new(now),
        }
    }

    /// Waits until one more request, which moves so many `bytes`, may begin.
    pub(crate) async fn begin(&self, bytes: u64) -> Turn<'_> {
        let shares = shares_of(bytes).min(self.with_state(|state| state.permits));
        let many = u32::try_from(shares).unwrap_or(1);
        // They fail only when the semaphore is closed, which it never is.
        let request = Arc::clone(&self.requests).acquire_owned().await.ok();
        let held = Arc::clone(&self.shares).acquire_many_owned(many).await.ok();
        if self.with_state(|state| state.learner.rate()).is_some() {
            // One at a time, so that a rate that has changed holds for all who wait.
            let mut last = self.gate.lock().await;
            if let Some(rate) = self.with_state(|state| state.learner.rate()) {
                let now = Instant::now();
                // Sleeps end late by a little; so much may be made up for.
                let due = (*last + Duration::from_secs_f64(1.0 / rate)).max(now - CATCH_UP);
                if let Some(wait) = due.checked_duration_since(now) {
                    clock::sleep(wait).await;
                }
                *last = due;
            }
        }
        Turn {
            pacer: self,
            shares,
            began: Instant::now(),
            _permits: (request, held),
        }
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, act: impl FnOnce(&mut Learner, Instant)) {
        self.with_state(|state| {
            act(&mut state.learner, Instant::now());
            let limit = state.learner.limit();
            if limit > state.permits {
                self.shares.add_permits(limit - state.permits);
                state.permits = limit;
            }
        });
    }
}

/// The right to have one request under way.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pacer: &'a Pacer,
    shares: usize,
    began: Instant,
    _permits: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
}

impl Turn<'_> {
    /// The request was answered, and not with "slow down".
    pub(crate) fn answered(self) {
        self.pacer
            .learn(|learner, now| learner.succeeded(self.shares, self.began, now));
    }

    /// The request was answered with "slow down".
    pub(crate) fn throttled(self) {
        self.pacer
            .learn(|learner, now| learner.throttled(self.began, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_large_requests_fewer_begin_and_as_many_come_to_be_in_flight() {
        let mib = 1024 * 1024;
        let shares = [0, mib, 16 * mib, 16 * mib + 1, 64 * mib, 5 << 30].map(shares_of);
        assert_eq!(shares, [1, 1, 1, 2, 4, 4]);
        let start = Instant::now();
        let mut learner = Learner::new(start, CEILING);
        let in_flight = |learner: &Learner| learner.limit() / shares_of(64 * mib);
        assert_eq!(in_flight(&learner), 8);
        for _ in 0..8 {
            learner.succeeded(4, start, start + Duration::from_millis(500));
        }
        assert_eq!(in_flight(&learner), 16);
        for _ in 0..1000 {
            learner.succeeded(4, start, start + Duration::from_millis(500));
        }
        assert_eq!(in_flight(&learner), CEILING);
    }

    #[tokio::test]
    async fn a_large_request_waits_for_its_shares_and_never_for_more_than_there_are() {
        let bytes = 64 << 20;
        let pacer = Pacer::new(CEILING);
        let mut turns = Vec::new();
        for _ in 0..8 {
            turns.push(pacer.begin(bytes).await);
        }
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, pacer.begin(0)).await.is_err());
        turns.pop();
        for _ in 0..4 {
            turns.push(pacer.begin(0).await);
        }
        // Where one request at a time is allowed, it is let through.
        let pacer = Pacer::new(1);
        let only = pacer.begin(bytes).await;
        assert!(tokio::time::timeout(soon, pacer.begin(0)).await.is_err());
        drop(only);
        pacer.begin(0).await.answered();
    }

    /// Runs requests of `latency` against a store that answers `cap` a second well (0: all), for
    /// `seconds`; returns goodput a second and the share of throttled requests, after the first
    /// second, in which the limit is being found.
    fn simulate(cap: u32, latency: Duration, seconds: u32) -> (f64, f64) {
        let start = Instant::now();
        let mut learner = Learner::new(start, CEILING);
        let mut in_flight: VecDeque<Instant> = VecDeque::new();
        let (mut good, mut bad) = (0u32, 0u32);
        let mut tokens = f64::from(cap) / 10.0;
        let mut next = start;
        let tick = Duration::from_micros(200);
        let mut now = start;
        while now < start + Duration::from_secs(u64::from(seconds)) {
            now += tick;
            tokens = (tokens + f64::from(cap) * tick.as_secs_f64()).min(f64::from(cap) / 10.0);
            while in_flight
                .front()
                .is_some_and(|began| now.duration_since(*began) >= latency)
            {
                let began = in_flight.pop_front().unwrap_or(now);
                let counts = now > start + Duration::from_secs(1);
                if cap == 0 || tokens >= 1.0 {
                    tokens -= 1.0;
                    good += u32::from(counts);
                    learner.succeeded(1, began, now);
                } else {
                    bad += u32::from(counts);
                    learner.throttled(began, now);
                }
            }
            while in_flight.len() < learner.limit().min(CEILING) && next <= now {
                in_flight.push_back(now);
                next = match learner.rate() {
                    Some(rate) => {
                        next.max(now - Duration::from_millis(5))
                            + Duration::from_secs_f64(1.0 / rate)
                    }
                    None => now,
                };
            }
        }
        let sum = f64::from(good + bad);
        (
            f64::from(good) / f64::from(seconds - 1),
            f64::from(bad) / sum,
        )
    }

    #[test]
    fn without_a_cap_the_limit_grows_to_the_ceiling() {
        let (goodput, throttled) = simulate(0, Duration::from_millis(20), 5);
        assert!(goodput > 0.9 * CEILING as f64 / 0.020, "{goodput}");
        assert_eq!(throttled, 0.0);
    }

    #[test]
    fn a_cap_is_found_and_hardly_run_into() {
        for cap in [50, 500, 3000] {
            let (goodput, throttled) = simulate(cap, Duration::from_millis(20), 20);
            assert!(goodput > 0.9 * f64::from(cap), "cap {cap}: {goodput}");
            assert!(throttled < 0.1, "cap {cap}: {throttled}");
        }
    }

    #[test]
    fn one_round_trip_is_cut_once() {
        let start = Instant::now();
        let mut learner = Learner::new(start, CEILING);
        for n in 0..100 {
            learner.succeeded(1, start, start + Duration::from_millis(n * 10));
        }
        let now = start + Duration::from_secs(1);
        learner.throttled(start + Duration::from_millis(990), now);
        let rate = learner.rate();
        for _ in 0..50 {
            learner.throttled(
                start + Duration::from_millis(990),
                now + Duration::from_millis(1),
            );
        }
        assert_eq!(learner.rate(), rate);
    }
}
