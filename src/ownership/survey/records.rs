//! Reads what other parties have written down beside snapshots. I/O.

use crate::error::{ErrorKind, Result};
use crate::restore::{Attempt, ways_on};
use crate::store::Location;

use super::super::evidence::{MissingEvidence, MissingReason};
use super::super::record::{self, Pin, RECORD_LIMIT_BYTES, RecordName};
use super::Surveyor;

impl Surveyor<'_> {
    /// Reads all records that were listed.
    pub(super) async fn read_records(&mut self) -> Result<()> {
        for at in std::mem::take(&mut self.records) {
            let name = RecordName::of(&at);
            if name == RecordName::Other {
                continue;
            }
            let bytes = match self.access.read(&at, RECORD_LIMIT_BYTES).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    self.vanished(&at, name);
                    continue;
                }
                Err(e) => {
                    self.miss(&at, MissingReason::UnreadableRecord, &e);
                    continue;
                }
                Ok(bytes) => bytes,
            };
            let records = &mut self.s.records;
            let read = match name {
                RecordName::Pin(of) => {
                    record::decode(&bytes, &at).map(|pin| records.pins.push((of, pin)))
                }
                RecordName::Claim(of) => {
                    record::decode(&bytes, &at).map(|claim| records.claims.push((of, claim)))
                }
                RecordName::Restore(of) => {
                    record::decode(&bytes, &at).map(|restore| records.restores.push((of, restore)))
                }
                RecordName::Mark(of) => record::decode(&bytes, &at)
                    .map(|mark| records.marks.push((of, at.clone(), mark))),
                RecordName::ForkNote(of) => record::decode::<Attempt>(&bytes, &at).map(|attempt| {
                    let by = match &attempt.plan {
                        Some(plan) => format!(", by plan {plan}"),
                        None => String::new(),
                    };
                    let detail = format!("fork {} of {}{by}", attempt.fork_id, attempt.source);
                    let root = of.parent().unwrap_or_else(|| of.clone());
                    let ways = ways_on(&attempt.source, &root, attempt.plan.as_ref());
                    let mut missing =
                        MissingEvidence::new(at.clone(), MissingReason::ForkUnderWay, detail);
                    missing.way_on = Some(format!("wait for it, or {ways}"));
                    self.s.missing.push(missing);
                    records.forks.push((of, attempt));
                }),
                RecordName::Other => Ok(()),
            };
            if let Err(e) = read {
                self.miss(&at, MissingReason::DamagedRecord, &e);
            }
        }
        Ok(())
    }

    /// Whoever wrote a record has removed it since it was listed. What came in between is not listed, and may use
    /// what the record has kept until then.
    fn vanished(&mut self, at: &Location, name: RecordName) {
        match name {
            RecordName::Pin(of) => {
                let pin = Pin::vanished(at, self.s.taken_at);
                self.s.records.pins.push((of, pin));
            }
            RecordName::ForkNote(of) => self.s.missing.push(MissingEvidence::new(
                of,
                MissingReason::ChangedMeanwhile,
                "a fork to here has ended since it was listed",
            )),
            // A job that has completed a checkpoint, or has never begun, uses nothing that these have kept; marks
            // are for others.
            RecordName::Claim(_)
            | RecordName::Restore(_)
            | RecordName::Mark(_)
            | RecordName::Other => {}
        }
    }
}
