//! Calls, ranges, bodies and problem documents: what is printed is read back, and limits hold.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use forkpoint::ErrorKind;
use forkpoint::blob::wire::{
    AcquireBody, Asked, BeginUpload, ByteRange, Call, Code, LARGEST_BODY, Problem, RenewBody, Verb,
    WirePhase, parse_body, parse_range,
};
use forkpoint::blob::{
    BlobKey, Class, Digest, JobEvent, JobId, LeaseId, Moment, Outcome, Planned, ReceiverId,
    Refusal, SessionId,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn job() -> JobId {
    JobId::parse("j1").unwrap()
}

fn digest() -> Digest {
    Digest::of(b"abc")
}

fn calls() -> Vec<Call> {
    let (session, lease) = (SessionId(0xfe), LeaseId::parse("l-1").unwrap());
    let download = |head| Call::Download {
        job: job(),
        digest: digest(),
        head,
    };
    let send = |digest| Call::SendMember {
        job: job(),
        session,
        digest,
    };
    vec![
        download(false),
        download(true),
        Call::BeginUpload(job()),
        send(None),
        send(Some(digest())),
        Call::CommitUpload(job(), session),
        Call::AbortUpload(job(), session),
        Call::JobEvent(job()),
        Call::Acquire(job(), digest()),
        Call::Renew(job(), digest(), lease.clone()),
        Call::Acknowledge(job(), digest(), ReceiverId::parse("tm-1").unwrap()),
        Call::Release(job(), digest(), lease),
        Call::ListJobs,
        Call::ListBlobs(job()),
        Call::Why(job(), digest()),
    ]
}

#[test]
fn every_call_is_read_back_from_its_method_and_path() {
    for call in calls() {
        let path = call.to_string();
        assert_eq!(Call::parse(call.verb().as_str(), &path).unwrap(), call);
        for wrong in ["PATCH", "get", "", "TRACE"] {
            assert_eq!(
                Call::parse(wrong, &path).unwrap_err().status,
                405,
                "{wrong} {path}"
            );
        }
    }
}

#[test]
fn hostile_paths_are_no_calls() {
    let d = digest();
    for path in [
        "",
        "/",
        "/v1",
        "/v1/jobs",
        "/v1/jobs/",
        "/v1/jobs//blobs/x",
        "//v1/jobs/j1/uploads",
        "/v1/jobs/../events",
        "/v1/jobs/%2e%2e/events",
        "/v1/jobs/j1/../j2/events",
        "/v1/jobs/j1/events/",
        "/v1/jobs/j1/events?x",
        "/v1/jobs/j1/events#x",
        "/v1/jobs/J1/events",
        "/V1/jobs/j1/events",
        "/v1/jobs/j1\\events",
        "/v1/jobs/j1/events\0",
        "/v1/jobs/\u{ff0e}/events",
        "http://h/v1/jobs/j1/events",
        "/v1/jobs/j1/uploads/FE/commit",
        "/v1/jobs/j1/uploads/-/commit",
    ] {
        assert!(Call::parse("POST", path).is_err(), "{path:?}");
    }
    for name in [
        "..",
        "%2e%2e%2fetc",
        "-",
        &d.to_string().to_uppercase(),
        &format!("{d}/"),
        &format!("{d}%00"),
    ] {
        assert!(
            Call::parse("GET", &format!("/v1/jobs/j1/blobs/{name}")).is_err(),
            "{name:?}"
        );
    }
    let long = format!("/v1/jobs/{}/events", "a".repeat(5000));
    let problem = Call::parse("POST", &long).unwrap_err();
    assert_eq!((problem.status, problem.code), (404, Code::NoSuchCall));
    assert!(problem.detail.len() < 200);
}

#[test]
fn mutated_paths_are_refused_or_print_as_themselves() {
    let mut random = StdRng::seed_from_u64(4);
    let calls = calls();
    let parts = ["..", "/", "%2f", "A", "0", "-", "refs", "\0"];
    let mut taken = 0;
    for _ in 0..40_000 {
        let call = &calls[random.random_range(0..calls.len())];
        let mut text: Vec<char> = call.to_string().chars().collect();
        let at = random.random_range(0..=text.len());
        let end = (at + random.random_range(0..4)).min(text.len());
        text.splice(at..end, parts[random.random_range(0..parts.len())].chars());
        let text: String = text.into_iter().collect();
        if let Ok(read) = Call::parse(call.verb().as_str(), &text) {
            assert_eq!(read.to_string(), text);
            assert!(!text.contains(".."));
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken}");
    assert_eq!(Verb::Delete.as_str(), "DELETE");
}

#[test]
fn ranges_are_read_as_the_rfc_says() {
    let part = |start, end, size| Asked::Part(ByteRange { start, end, size });
    for (value, size, expected) in [
        ("bytes=0-0", 10, part(0, 1, 10)),
        ("bytes=0-499", 10_000, part(0, 500, 10_000)),
        ("bytes=-500", 10_000, part(9_500, 10_000, 10_000)),
        ("bytes=9500-", 10_000, part(9_500, 10_000, 10_000)),
        ("Bytes= 5-6 ", 10, part(5, 7, 10)),
        ("bytes=5-99999999999999999999999999", 10, part(5, 10, 10)),
        ("bytes=-99", 10, part(0, 10, 10)),
        ("bytes=10-", 10, Asked::Unsatisfiable),
        ("bytes=-0", 10, Asked::Unsatisfiable),
        ("bytes=0-", 0, Asked::Unsatisfiable),
        ("bytes=-5", 0, Asked::Unsatisfiable),
        ("bytes=7-6", 10, Asked::Whole),
        ("bytes=-", 10, Asked::Whole),
        ("bytes=0-1,3-4", 10, Asked::Whole),
        ("bytes=+1-2", 10, Asked::Whole),
        ("bytes=1-2-3", 10, Asked::Whole),
        ("items=0-1", 10, Asked::Whole),
        ("bytes", 10, Asked::Whole),
    ] {
        assert_eq!(
            parse_range(Some(value), size),
            expected,
            "{value} of {size}"
        );
    }
    assert_eq!(parse_range(None, 10), Asked::Whole);
    let long = format!("bytes={}1-2", "0".repeat(1000));
    assert_eq!(parse_range(Some(&long), 10), Asked::Whole);
}

#[test]
fn a_range_is_read_back_from_both_headers() {
    let mut random = StdRng::seed_from_u64(9);
    for _ in 0..2000 {
        let size = random.random_range(1..u64::MAX);
        let start = random.random_range(0..size);
        let end = random.random_range(start..size) + 1;
        let range = ByteRange { start, end, size };
        assert_eq!(parse_range(Some(&range.header()), size), Asked::Part(range));
        assert_eq!(
            ByteRange::parse_content_range(&range.to_string()),
            Some(range)
        );
        assert_eq!(range.length(), end - start);
    }
    for bad in [
        "bytes */10",
        "bytes 0-9/*",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "0-1/2",
        "",
    ] {
        assert_eq!(ByteRange::parse_content_range(bad), None, "{bad}");
    }
}

#[test]
fn bodies_are_read_with_limits() {
    let body = BeginUpload {
        session: SessionId(3),
        members: vec![forkpoint::blob::wire::PlannedMember {
            digest: digest(),
            class: Class::Retained,
            name: None,
        }],
    };
    let json = serde_json::to_vec(&body).unwrap();
    let read: BeginUpload = parse_body(&json).unwrap();
    assert_eq!(read, body);
    let planned: Planned = read.members[0].clone().into();
    assert_eq!(planned.digest, digest());
    let status = |bytes: &[u8]| parse_body::<BeginUpload>(bytes).unwrap_err().status;
    assert_eq!(status(&vec![b' '; LARGEST_BODY + 1]), 413);
    for end in 0..json.len() {
        assert_eq!(status(&json[..end]), 400);
    }
    assert_eq!(
        status(br#"{"session":"0000000000000003","members":[],"more":1}"#),
        400
    );
    assert_eq!(status(br#"{"session":"../3","members":[]}"#), 400);
    assert_eq!(status("[".repeat(100_000).as_bytes()), 400);

    let event: JobEvent = parse_body(br#"{"event":"terminal","outcome":"finished"}"#).unwrap();
    assert_eq!(
        event,
        JobEvent::Terminal {
            outcome: Outcome::Finished
        }
    );
    assert_eq!(
        parse_body::<JobEvent>(br#"{"event":"failed"}"#).unwrap(),
        JobEvent::Failed
    );
    let refs: AcquireBody = parse_body(br#"{"kind":"receivers","receivers":["tm-1"]}"#).unwrap();
    assert!(matches!(refs, AcquireBody::Receivers { receivers } if receivers.len() == 1));
    let renew: RenewBody = parse_body(br#"{"millis":5}"#).unwrap();
    assert_eq!(renew.end(Moment(10)), Moment(15));
    assert_eq!(
        RenewBody { millis: u64::MAX }.end(Moment(10)),
        Moment(u64::MAX)
    );
}

#[test]
fn a_problem_is_read_back_and_tells_the_client_what_to_do() {
    let key = BlobKey {
        job: job(),
        digest: digest(),
    };
    let problem = Problem::new(Code::Busy, "50 transfers are under way")
        .of(key.clone())
        .during(WirePhase::Transfer, 17)
        .retry_after(Duration::from_millis(1500));
    let json = problem.to_json().unwrap();
    assert_eq!(Problem::from_json(&json, 503).unwrap(), problem);
    let text = String::from_utf8(json).unwrap();
    assert!(text.contains(r#""type":"about:blank""#) && text.contains(r#""retry_after":2"#));
    let error = problem.into_error();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        format!("{key}: 50 transfers are under way after 17 bytes")
    );
    let more = text.replace("\"status\"", "\"new member\":1,\"status\"");
    assert!(Problem::from_json(more.as_bytes(), 503).is_ok());
    let e = Problem::from_json(b"<html>502</html>", 502).unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("502"));
}

#[test]
fn refusals_have_the_statuses_of_the_protocol() {
    let key = BlobKey {
        job: job(),
        digest: digest(),
    };
    let id = SessionId(1);
    let other = Digest::of(b"x");
    for (refusal, status) in [
        (Refusal::NotFound(key.clone()), 404),
        (Refusal::JobOver(job(), Outcome::Failed), 410),
        (Refusal::Lost(key.clone()), 410),
        (Refusal::NoSession(id), 412),
        (Refusal::SessionTaken(id), 409),
        (Refusal::Incomplete(id, vec![digest(); 5000]), 409),
        (Refusal::TooLarge(digest(), 1), 413),
        (Refusal::Quota(job(), 1), 507),
        (Refusal::TooMany("sessions", 1), 429),
        (
            Refusal::OtherContent {
                promised: digest(),
                arrived: other,
            },
            422,
        ),
        (Refusal::LeaseEnded(key), 412),
    ] {
        let error = refusal.clone().into_error();
        assert!(error.next_step().is_some());
        let problem = Problem::from(refusal);
        assert_eq!(problem.status, status, "{problem:?}");
        assert!(problem.missing.len() <= 1000);
        assert_eq!(
            Problem::from_json(&problem.to_json().unwrap(), status).unwrap(),
            problem
        );
    }
}
