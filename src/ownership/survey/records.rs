//! Reads what other parties have written down beside snapshots. I/O.

use crate::error::{ErrorKind, Result};
use crate::restore::{Attempt, ways_on};
use crate::store::Location;

use super::super::evidence::{MissingEvidence, MissingReason};
use super::super::record::{
    self, BEING_GIVEN_UP, Claim, Mark, Pin, RECORD_LIMIT_BYTES, RecordName, Restore,
};
use super::Surveyor;

/// What other parties have written down about snapshots, by the snapshot's folder.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Named reasons to keep.
    pub pins: Vec<(Location, Pin)>,
    /// Who took a snapshot over.
    pub claims: Vec<(Location, Claim)>,
    /// Who was started from a snapshot.
    pub restores: Vec<(Location, Restore)>,
    /// What cleaners are about to delete, by the job's folder, with the place of the mark.
    pub marks: Vec<(Location, Location, Mark)>,
    /// Forks under way, by the folder of the new snapshot.
    pub forks: Vec<(Location, Attempt)>,
}

impl Records {
    /// How a fork is given up to its end, if there is a mark of somebody who has begun to. `plan`: its plan, if that is
    /// known.
    pub(crate) fn giving_up(&self, fork_id: &str, plan: Option<&Location>) -> Option<String> {
        self.marks.iter().find_map(|(_, at, mark)| {
            let fork = mark.fork.as_ref().filter(|f| f.fork_id == fork_id)?;
            Some(fork.way_on(at, plan))
        })
    }
}

impl Surveyor<'_> {
    /// Reads all records that were listed.
    pub(super) async fn read_records(&mut self) -> Result<()> {
        let (mut notes, before) = (Vec::new(), self.s.records.forks.len());
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
                    notes.push(at.clone());
                    records.forks.push((of, attempt));
                }),
                RecordName::Other => Ok(()),
            };
            if let Err(e) = read {
                self.miss(&at, MissingReason::DamagedRecord, &e);
            }
        }
        // Whether somebody gives a fork up is known only now.
        let forks = self.s.records.forks.iter().skip(before);
        let missing = notes.into_iter().zip(forks);
        let missing: Vec<MissingEvidence> = missing
            .map(|(at, (of, attempt))| self.under_way(at, of, attempt))
            .collect();
        self.s.missing.extend(missing);
        Ok(())
    }

    /// What a fork to the folder `of` will come to is not known yet; its note lies at `at`.
    fn under_way(&self, at: Location, of: &Location, attempt: &Attempt) -> MissingEvidence {
        let Attempt {
            fork_id,
            source,
            plan,
            ..
        } = attempt;
        let by = plan
            .as_ref()
            .map_or_else(String::new, |plan| format!(", by plan {plan}"));
        let (state, way_on) = match self.s.records.giving_up(fork_id, plan.as_ref()) {
            Some(way_on) => (format!(", which is {BEING_GIVEN_UP}"), way_on),
            None => {
                let root = of.parent().unwrap_or_else(|| of.clone());
                let ways = ways_on(source, &root, plan.as_ref());
                (String::new(), format!("wait for it, or {ways}"))
            }
        };
        let detail = format!("fork {fork_id} of {source}{by}{state}");
        MissingEvidence {
            way_on: Some(way_on),
            ..MissingEvidence::new(at, MissingReason::ForkUnderWay, detail)
        }
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
