//! What reading and restoring take in memory.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use forkpoint::ErrorKind;
use forkpoint::snapshot::native::{FREE_TEXT_LIMIT_BYTES, FREE_VALUES_LIMIT, Manifest, Partition};
use forkpoint::writer::{JobDescription, Start, State, SubtaskRestore};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use support::engine::{checkpoint, fresh, start};
use support::{local_stores, temp};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

/// One test at a time: memory is counted for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much more was allocated at once than before.
struct Peak(usize);

impl Peak {
    fn begin() -> Peak {
        ALLOCATED.reset_peak_usage();
        Peak(ALLOCATED.current_usage())
    }

    fn bytes(&self) -> usize {
        ALLOCATED.peak_usage().saturating_sub(self.0)
    }
}

#[test]
fn a_union_state_is_held_once_however_many_subtasks_get_it() {
    let _alone = alone();
    const SUBTASKS: u32 = 200;
    const BYTES: usize = 10_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_dir, root) = temp();
        let (stores, home) = (local_stores(), root.join("orders").unwrap());
        let sources = JobDescription::new("orders").operator("source", SUBTASKS);
        let running = fresh(&stores, &home, &sources).await;
        checkpoint(&stores, &running, |order| {
            let offsets = vec![order.subtask as u8; BYTES];
            vec![State::new("offsets", Partition::Union).inline(offsets)]
        })
        .await;
        drop(running);
        let peak = Peak::begin();
        let (running, restored) = start(&stores, &home, &sources, &Start::newest()).await;
        let restored = restored.unwrap();
        let took = peak.bytes();
        // All get all: 200 times 200 times 10 KB, as text a third more.
        let all = SUBTASKS as usize * SUBTASKS as usize * BYTES;
        assert!(took < all / 10, "{took} bytes of {all}");
        assert!(took < 32 * MIB, "{took} bytes");
        assert_eq!(restored.subtasks.len(), SUBTASKS as usize);
        let last = restored.subtasks.last().unwrap();
        let read = SubtaskRestore::from_json(&last.to_json().unwrap()).unwrap();
        assert_eq!(read, *last);
        for (n, state) in read.states.iter().enumerate() {
            let offsets = state.inline().unwrap().unwrap();
            assert_eq!((state.from_subtask, offsets.len()), (n as u32, BYTES));
            assert!(offsets.iter().all(|b| *b == n as u8));
        }
        assert_eq!(read.states.len(), SUBTASKS as usize);
        drop(running);
    });
}

/// A manifest with one of everything, and room for something strange in each part.
fn sample() -> Value {
    json!({
        "format": "forkpoint-snapshot", "version": 1, "job": "orders", "number": 7, "kind": "checkpoint",
        "attempt": "0123456789abcdef0123456789abcdef", "created_unix_ms": 1_700_000_000_000u64,
        "metrics": {"loss": 0.25},
        "user": {"step": 4000},
        "files": [{"path": "own-1", "size": 10, "sha256": "a".repeat(64), "scope": "exclusive"}],
        "operators": [{"id": "counts", "parallelism": 1, "max_parallelism": 128, "subtasks": [
            {"subtask": 0, "states": [
                {"name": "t", "partition": {"by": "key-groups", "range": {"first": 0, "count": 128}},
                 "files": [{"file": 0, "name": "a"}]}
            ]}
        ]}]
    })
}

const PARTS: [&str; 9] = [
    "",
    "/metrics",
    "/user",
    "/files/0",
    "/operators/0",
    "/operators/0/subtasks/0",
    "/operators/0/subtasks/0/states/0",
    "/operators/0/subtasks/0/states/0/files/0",
    "/operators/0/subtasks/0/states/0/partition",
];

/// The sample with `"x": value` in one of its parts.
fn with(part: &str, value: &str) -> Vec<u8> {
    let mut sample = sample();
    let place = sample.pointer_mut(part).unwrap().as_object_mut().unwrap();
    place.insert("x".into(), json!("HERE"));
    let text = serde_json::to_string(&sample).unwrap();
    text.replace("\"HERE\"", value).into_bytes()
}

/// `one`, again and again, in brackets.
fn list(open: char, one: &str, close: char, bytes: usize) -> String {
    let count = bytes / (one.len() + 1);
    format!("{open}{}{close}", vec![one; count.max(1)].join(","))
}

#[test]
fn a_manifest_with_millions_of_values_that_nobody_knows_is_refused_before_any_is_built() {
    let _alone = alone();
    for part in PARTS {
        let values = [
            list('[', "0", ']', 4 * MIB),
            list('{', "\"\":[]", '}', 2 * MIB),
            list('[', "[[[[]]]]", ']', 2 * MIB),
            format!("[[{0}],[{0}]]", format!("\"{}\"", "é".repeat(MIB / 2))),
        ];
        for value in values {
            let bytes = with(part, &value);
            let peak = Peak::begin();
            let e = Manifest::decode(&bytes).unwrap_err();
            let took = peak.bytes();
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{part}: {e}");
            assert!(e.to_string().contains(" more than "), "{part}: {e}");
            // A text without escapes is pointed at, not copied.
            assert!(
                took < MIB,
                "{part}: {took} bytes for {} of text",
                bytes.len()
            );
        }
    }
    // What is known and of a wrong kind is not built either.
    let zeros = list('[', "0", ']', 4 * MIB);
    for part in ["by", "range", "elements"] {
        let mut wrong = sample();
        wrong["operators"][0]["subtasks"][0]["states"][0]["partition"][part] = json!("HERE");
        let text = serde_json::to_string(&wrong).unwrap();
        let bytes = text.replace("\"HERE\"", &zeros).into_bytes();
        let peak = Peak::begin();
        Manifest::decode(&bytes).unwrap_err();
        assert!(peak.bytes() < MIB, "{part}: {} bytes", peak.bytes());
    }
}

#[test]
fn as_much_as_is_allowed_is_written_and_read() {
    let _alone = alone();
    let mut manifest = Manifest::decode(&serde_json::to_vec(&sample()).unwrap()).unwrap();
    let fill = |manifest: &mut Manifest, numbers: usize, text: usize| {
        manifest.user.clear();
        manifest.user.insert("n".into(), json!(vec![0; numbers]));
        manifest.user.insert("t".into(), json!("x".repeat(text)));
    };
    // With the sample's own: metrics, a name and a number in it, user, two names, a list, a text.
    fill(
        &mut manifest,
        FREE_VALUES_LIMIT - 20,
        FREE_TEXT_LIMIT_BYTES - 100,
    );
    let written = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&written).unwrap(), manifest);
    for (numbers, text) in [(FREE_VALUES_LIMIT, 0), (0, FREE_TEXT_LIMIT_BYTES)] {
        fill(&mut manifest, numbers, text);
        let e = manifest.encode().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        assert!(e.next_step().is_some());
    }
    // Many states with a partition each do not count.
    fill(&mut manifest, 0, 0);
    let states = &mut manifest.operators[0].subtasks[0].states;
    *states = vec![states[0].clone(); FREE_VALUES_LIMIT];
    let written = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&written).unwrap(), manifest);
}
