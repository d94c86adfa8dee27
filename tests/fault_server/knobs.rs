//! Each knob does what it says.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::fault::{
    Action, Answer, FaultServer, Faults, Gate, KNOBS, Kind, Rule, Service, set_knob,
};
use crate::waits::until;

async fn get(server: &FaultServer, path: &str) -> Result<Answer, String> {
    send(server, "GET", path, &[]).await
}

async fn copy(server: &FaultServer, to: &str) -> Result<Answer, String> {
    let headers = [("x-amz-copy-source", "/one/a")];
    send(server, "PUT", to, &headers).await
}

async fn send(
    server: &FaultServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Answer, String> {
    let key = crate::fault::ACCESS_KEY;
    let authorization = format!("AWS4-HMAC-SHA256 Credential={key}/x, Signature=0");
    let headers = [&[("authorization", authorization.as_str())], headers].concat();
    server
        .bare_request(Service::S3, method, path, &headers, Bytes::new())
        .await
}

async fn started() -> FaultServer {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "a", 1, 1000);
    server
}

#[tokio::test]
async fn rules_count_and_end() {
    let server = started().await;
    let slow = Action::Fail {
        status: 503,
        code: "SlowDown",
    };
    server.add(Rule::on(Kind::Get, slow).after(1).times(2).for_keys("a"));
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(get(&server, "/one/a").await.unwrap().status);
    }
    assert_eq!(statuses, [200, 503, 503, 200, 200]);
    let logged: Vec<u16> = server
        .log()
        .records_of("a")
        .iter()
        .map(|r| r.status)
        .collect();
    assert_eq!(logged, statuses);
}

#[tokio::test]
async fn a_lost_reply_was_executed_and_a_reset_was_not() {
    let server = started().await;
    server.add(Rule::on(Kind::Copy, Action::Reset).times(1));
    assert!(copy(&server, "/two/b").await.is_err());
    assert!(server.keys(Service::S3, "two").is_empty());
    server.add(Rule::on(Kind::Copy, Action::LoseReply { after: None }).times(1));
    assert!(copy(&server, "/two/b").await.is_err());
    assert_eq!(server.keys(Service::S3, "two"), ["b"]);
    server.add(Rule::on(Kind::Copy, Action::LoseReply { after: Some(50) }).times(1));
    assert!(copy(&server, "/two/c").await.is_err());
    assert_eq!(server.keys(Service::S3, "two"), ["b", "c"]);
    assert_eq!(copy(&server, "/two/d").await.unwrap().status, 200);
}

#[tokio::test]
async fn an_error_inside_a_success_copies_nothing() {
    let server = started().await;
    let inside = Action::FailInside {
        code: "AccessDenied",
    };
    server.add(Rule::on(Kind::Copy, inside).times(1));
    let answer = copy(&server, "/two/b").await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.element("Code"), "AccessDenied");
    assert!(server.keys(Service::S3, "two").is_empty());
}

#[tokio::test]
async fn a_body_is_cut_short_or_wrong_in_one_byte() {
    let server = started().await;
    let right = get(&server, "/one/a").await.unwrap().body;
    server.add(Rule::on(Kind::Get, Action::LoseReply { after: Some(10) }).times(1));
    assert!(get(&server, "/one/a").await.is_err());
    server.add(Rule::on(Kind::Get, Action::Flip { at: 500 }).times(1));
    let wrong = get(&server, "/one/a").await.unwrap().body;
    let differ: Vec<usize> = (0..1000).filter(|i| right[*i] != wrong[*i]).collect();
    assert_eq!(differ, [500]);
}

#[tokio::test]
async fn a_slow_copy_trickles_and_ends_with_its_result() {
    let server = started().await;
    let slowly = Action::Trickle {
        every: Duration::from_millis(20),
        total: Duration::from_secs(1),
    };
    server.add(Rule::on(Kind::Copy, slowly));
    let begun = Instant::now();
    let answer = copy(&server, "/two/b").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(answer.text().matches(' ').count() >= 5);
    assert_eq!(answer.element("ETag").len(), 34);
    // Conditions that fail at the start are answered at once, with their own status.
    let headers = [("x-amz-copy-source", "/one/a"), ("if-none-match", "*")];
    let refused = send(&server, "PUT", "/two/b", &headers).await.unwrap();
    assert_eq!(refused.status, 412);
}

#[tokio::test]
async fn a_copy_takes_the_time_of_its_bytes_and_survives_its_client() {
    let server = started().await;
    server.faults().copy_bytes_per_second = Some(5000);
    let begun = Instant::now();
    assert_eq!(copy(&server, "/two/b").await.unwrap().status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let gate = Gate::new();
    let held = Action::Hold {
        gate: gate.clone(),
        trickle: None,
    };
    server.add(Rule::on(Kind::Copy, held));
    tokio::select! {
        answer = copy(&server, "/two/c") => panic!("it did not wait: {answer:?}"),
        () = gate.reached() => {}
    }
    assert_eq!(server.keys(Service::S3, "two"), ["b"]);
    gate.open();
    until("the copy is there all the same", || {
        server.keys(Service::S3, "two") == ["b", "c"]
    })
    .await;
}

#[tokio::test]
async fn latency_and_cap_hold() {
    let server = started().await;
    server.faults().latency = Duration::from_millis(30);
    let begun = Instant::now();
    get(&server, "/one/a").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
    {
        let mut faults = server.faults();
        faults.latency = Duration::ZERO;
        faults.cap = Some(20);
        faults.retry_after = Some(3);
    }
    let begun = Instant::now();
    let mut refused = 0;
    for _ in 0..30 {
        let answer = get(&server, "/one/a").await.unwrap();
        if answer.status == 503 {
            assert_eq!(answer.element("Code"), "SlowDown");
            assert_eq!(answer.header("retry-after"), "3");
            refused += 1;
        }
    }
    // Two at once, and twenty more in each second.
    let most = 3.0 + 20.0 * begun.elapsed().as_secs_f64();
    assert!(
        f64::from(30 - refused) <= most,
        "{refused} of 30 were refused"
    );
    // Another bucket has an allowance of its own.
    assert_eq!(get(&server, "/two/none").await.unwrap().status, 404);
}

#[tokio::test]
async fn chances_repeat_with_their_seed() {
    let run = async |seed| {
        let server = started().await;
        let fail = Action::Fail {
            status: 500,
            code: "InternalError",
        };
        server.faults().seed(seed);
        server.add(Rule::on(Kind::Get, fail).with_chance(0.3));
        let mut statuses = Vec::new();
        for _ in 0..100 {
            statuses.push(get(&server, "/one/a").await.unwrap().status);
        }
        statuses
    };
    let (first, second, other) = tokio::join!(run(1), run(1), run(2));
    assert_eq!(first, second);
    assert_ne!(first, other);
    let failed = first.iter().filter(|s| **s == 500).count();
    assert!((15..=45).contains(&failed), "{failed} of 100");
}

#[tokio::test]
async fn conditions_can_be_ignored_and_part_copies_be_missing() {
    let server = started().await;
    server.put_seed(Service::S3, "two", "b", 2, 10);
    {
        let mut faults = server.faults();
        faults.ignore_destination_conditions = true;
        faults.ignore_source_conditions = true;
        faults.no_part_copy = true;
    }
    let headers = [
        ("x-amz-copy-source", "/one/a"),
        ("x-amz-copy-source-if-match", "\"other\""),
        ("if-none-match", "*"),
    ];
    let answer = send(&server, "PUT", "/two/b", &headers).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(server.same(Service::S3, ("one", "a"), ("two", "b")));
    let path = "/two/b?partNumber=1&uploadId=1";
    let part = send(&server, "PUT", path, &headers[..1]).await.unwrap();
    assert_eq!(part.status, 501);
}

#[tokio::test]
async fn knobs_turn_and_counters_show_over_http() {
    let server = started().await;
    let set = "/_fault/set?fail=get:418:Teapot&latency-ms=0";
    let at = async |path: &str| {
        server
            .bare_request(Service::Azure, "GET", path, &[], Bytes::new())
            .await
            .unwrap()
    };
    assert_eq!(at(set).await.status, 200);
    assert_eq!(get(&server, "/one/a").await.unwrap().status, 418);
    assert_eq!(
        at("/_fault/counters").await.text(),
        r#"{"s3.get":1,"s3.get.failed":1}"#
    );
    assert_eq!(at("/_fault/set?clear=true").await.status, 200);
    assert_eq!(get(&server, "/one/a").await.unwrap().status, 200);
    assert_eq!(at("/_fault/set?latency-ms=x").await.status, 400);
    at("/_fault/reset").await;
    assert_eq!(at("/_fault/counters").await.text(), "{}");
}

#[tokio::test]
async fn every_knob_that_is_named_can_be_turned() {
    for (name, value) in [
        ("latency-ms", "1"),
        ("copy-rate", "1000000"),
        ("cap", "500"),
        ("retry-after", "1"),
        ("ignore-destination", "true"),
        ("ignore-source", "true"),
        ("no-part-copy", "true"),
        ("rewrite-bytes", "1048576"),
        ("pending-ms", "10"),
        ("seed", "1"),
        ("fail", "copy:503:SlowDown:0.1"),
        ("fail-inside", "copy:InternalError"),
        ("lose", "complete-upload:0.5"),
        ("cut", "get:100:0.5"),
        ("reset", "put:0.5"),
        ("flip", "7"),
        ("delay", "head:5"),
        ("trickle", "10:100"),
        ("deny", "secret/"),
        ("times", "2"),
        ("keys", "secret/"),
        ("clear", "true"),
    ] {
        let mut faults = Faults::default();
        faults.add(Rule::always(Action::Reset));
        set_knob(&mut faults, name, value).unwrap();
        assert!(KNOBS.contains(&format!("{name}=")), "{name}");
        assert!(set_knob(&mut faults, name, "?").is_err() || ["deny", "keys"].contains(&name));
    }
    let mut faults = Faults::default();
    assert!(set_knob(&mut faults, "other", "1").is_err());
    assert!(set_knob(&mut faults, "lose", "copy:2").is_err());
    // There is no rule before them.
    assert!(set_knob(&mut faults, "times", "1").is_err());
    assert!(set_knob(&mut faults, "keys", "a").is_err());
}

#[tokio::test]
async fn rules_by_name_are_limited_in_times_and_keys() {
    let server = started().await;
    let set = "/_fault/set?fail=get:503:SlowDown&times=2&keys=a";
    assert_eq!(get(&server, set).await.unwrap().status, 200);
    let mut statuses = Vec::new();
    for key in ["b", "a", "a", "a"] {
        statuses.push(get(&server, &format!("/one/{key}")).await.unwrap().status);
    }
    assert_eq!(statuses, [404, 503, 503, 200]);
    let shown = get(&server, "/_fault/requests").await.unwrap();
    let shown: Vec<String> = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(shown.len(), 4, "{shown:?}");
    assert_eq!(shown[1], "s3 get GET one/a 503");
}
