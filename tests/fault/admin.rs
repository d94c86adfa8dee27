//! Requests to the server itself, for measurements from another process: `/_fault/...`.

use std::time::Duration;

use super::call::Call;
use super::faults::{Action, Faults, Pending, PendingEnd, Rule};
use super::log::{Kind, Record};
use super::reply::{Reply, Text};
use super::server::Shared;

/// Answers `/_fault/...`: `counters` shows them, `requests` shows the requests that are kept,
/// `reset` sets both to nothing, `set?NAME=VALUE` turns knobs.
pub fn answer(shared: &Shared, call: &Call) -> Option<Reply> {
    let what = call.path.strip_prefix("/_fault/")?;
    Some(match what {
        "counters" => Reply::json(200, &serde_json::json!(shared.log.counters())),
        "requests" => {
            let lines: Vec<String> = shared.log.records().iter().map(Record::line).collect();
            Reply::json(200, &serde_json::json!(lines))
        }
        "reset" => {
            shared.log.reset();
            Reply::new(200)
        }
        "set" => {
            let mut faults = shared.faults();
            let result: Result<(), String> = call
                .query
                .iter()
                .try_for_each(|(name, value)| set(&mut faults, name, value));
            match result {
                Ok(()) => Reply::new(200),
                Err(why) => Reply::new(400).body(Text::Bytes(why.into())),
            }
        }
        _ => Reply::new(404),
    })
}

/// What [`set`] understands, a line for each.
pub const KNOBS: &str = "\
latency-ms=N              every request takes at least N ms
copy-rate=N               copies move N bytes a second
cap=N                     N requests a second and bucket, 503 above
retry-after=N             refused requests are told to wait N s
ignore-destination=BOOL   copies ignore conditions on the destination
ignore-put=BOOL           plain writes ignore conditions on what is there
ignore-source=BOOL        copies ignore conditions on the source
no-part-copy=BOOL         copies of parts are answered with 501
rewrite-bytes=N           bytes that one call of a Google rewrite moves
pending-ms=N              Azure copies stay pending for N ms
seed=N                    seed of the chances below
fail=KIND:STATUS:CODE[:CHANCE]    requests fail without being executed
fail-inside=KIND:CODE[:CHANCE]    200 with an error in the body
lose=KIND[:CHANCE]        executed, then the connection is cut
cut=KIND:BYTES[:CHANCE]   executed, then the connection is cut after so many bytes of the body
reset=KIND[:CHANCE]       the connection is cut at once
flip=BYTE[:CHANCE]        reads show this byte of the object wrong
damage=KIND[:CHANCE]      what is sent arrives with a wrong byte
delay=KIND:MS[:CHANCE]    requests take this much longer
trickle=EVERY:TOTAL       S3's copies take TOTAL ms longer and send a space every EVERY ms
deny=PREFIX               requests for keys that begin so are answered with 403
times=N                   the rule before it is for the next N requests only
keys=PREFIX               the rule before it is for keys that begin so only
clear=BOOL                all rules from here up are taken away";

/// Turns one knob by name.
pub fn set(faults: &mut Faults, name: &str, value: &str) -> Result<(), String> {
    let bad = || format!("{name}={value} is not understood; known are:\n{KNOBS}");
    let number = || value.parse::<u64>().map_err(|_| bad());
    let truth = || value.parse::<bool>().map_err(|_| bad());
    let parts: Vec<&str> = value.split(':').collect();
    let kind = || {
        let found = Kind::ALL.iter().find(|k| k.as_str() == parts[0]);
        found.copied().ok_or_else(bad)
    };
    let at = |at: usize| {
        let number = parts.get(at).and_then(|n| n.parse::<u64>().ok());
        number.ok_or_else(bad)
    };
    let chance = |at: usize| match parts.get(at) {
        None => Ok(1.0),
        // Others would be an error later, in the middle of a request.
        Some(p) => match p.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
            _ => Err(bad()),
        },
    };
    // Codes live as long as the program: they come from its command line.
    let code = |at: usize| match parts.get(at) {
        Some(code) => Ok(&*code.to_string().leak()),
        None => Err(bad()),
    };
    match name {
        "latency-ms" => faults.latency = Duration::from_millis(number()?),
        "copy-rate" => faults.copy_bytes_per_second = Some(number()?).filter(|n| *n > 0),
        "cap" => faults.cap = u32::try_from(number()?).ok().filter(|n| *n > 0),
        "retry-after" => faults.retry_after = Some(number()?).filter(|n| *n > 0),
        "ignore-put" => faults.ignore_put_conditions = truth()?,
        "ignore-destination" => faults.ignore_destination_conditions = truth()?,
        "ignore-source" => faults.ignore_source_conditions = truth()?,
        "no-part-copy" => faults.no_part_copy = truth()?,
        "rewrite-bytes" => faults.rewrite_bytes_per_call = number()?,
        "pending-ms" => {
            let lasts = Duration::from_millis(number()?);
            faults.pending = (!lasts.is_zero()).then(|| Pending::of(lasts, PendingEnd::Success));
        }
        "seed" => drop(faults.seed(number()?)),
        "fail" => {
            let status = parts.get(1).and_then(|s| s.parse().ok()).ok_or_else(bad)?;
            let action = Action::Fail {
                status,
                code: code(2)?,
            };
            faults.add(Rule::on(kind()?, action).with_chance(chance(3)?));
        }
        "fail-inside" => {
            let action = Action::FailInside { code: code(1)? };
            faults.add(Rule::on(kind()?, action).with_chance(chance(2)?));
        }
        "lose" => {
            let action = Action::LoseReply { after: None };
            faults.add(Rule::on(kind()?, action).with_chance(chance(1)?));
        }
        "reset" => {
            faults.add(Rule::on(kind()?, Action::Reset).with_chance(chance(1)?));
        }
        "cut" => {
            let after = Some(at(1)?);
            let action = Action::LoseReply { after };
            faults.add(Rule::on(kind()?, action).with_chance(chance(2)?));
        }
        "flip" => {
            let action = Action::Flip { at: at(0)? };
            faults.add(Rule::on(Kind::Get, action).with_chance(chance(1)?));
        }
        "damage" => {
            faults.add(Rule::on(kind()?, Action::Damage).with_chance(chance(1)?));
        }
        "delay" => {
            let action = Action::Delay(Duration::from_millis(at(1)?));
            faults.add(Rule::on(kind()?, action).with_chance(chance(2)?));
        }
        "trickle" => {
            let every = Duration::from_millis(at(0)?);
            let total = Duration::from_millis(at(1)?);
            let action = Action::Trickle { every, total };
            faults.add(Rule::on(Kind::Copy, action).and_on(Kind::CopyPart));
        }
        "deny" => {
            let action = Action::Fail {
                status: 403,
                code: "AccessDenied",
            };
            faults.add(Rule::always(action).for_keys(value));
        }
        "times" => {
            let n = number()?;
            if !faults.change_last(|rule| rule.times(n)) {
                return Err(bad());
            }
        }
        "keys" => {
            if !faults.change_last(|rule| rule.for_keys(value)) {
                return Err(bad());
            }
        }
        "clear" => {
            if truth()? {
                faults.clear_rules();
            }
        }
        _ => return Err(bad()),
    }
    Ok(())
}
