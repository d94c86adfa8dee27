//! The manifest of native snapshots: what is written is read, what is not understood is kept, and nothing that
//! others may have written does harm.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use forkpoint::ErrorKind;
use forkpoint::snapshot::native::{
    COMMIT_OBJECT, MANIFEST_LIMIT_BYTES, Manifest, ManifestState, NativeFormat,
};
use forkpoint::snapshot::{CommitObject, Kind, Lookup, Scope, SnapshotFormat};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use support::{at, local_stores, run, run_json, temp};

fn sample() -> Value {
    let sha = |digit: char| digit.to_string().repeat(64);
    json!({
        "format": "forkpoint-snapshot",
        "version": 1,
        "job": "orders",
        "number": 7,
        "kind": "checkpoint",
        "attempt": "0123456789abcdef0123456789abcdef",
        "created_unix_ms": 1_700_000_000_000u64,
        "metrics": {"loss": 0.25},
        "user": {"step": 4000},
        "later": {"precise": 12345678901234567890u64, "list": [1, 2.5, null]},
        "files": [
            {"path": "own-1", "size": 10, "sha256": sha('a'), "scope": "exclusive", "later": true},
            {"path": "../shared/x", "size": 20, "sha256": sha('b'), "scope": "shared"},
            {"path": "s3://other/job/shared/y", "size": 30, "sha256": sha('c'), "scope": "shared"},
            {"path": "deep/own-2", "size": 40, "sha256": sha('d'), "scope": "exclusive"}
        ],
        "operators": [
            {"id": "counts", "name": "Counts", "parallelism": 2, "max_parallelism": 128, "later": 1, "subtasks": [
                {"subtask": 0, "states": [
                    {"name": "table", "partition": {"by": "key-groups", "range": {"first": 0, "count": 64}},
                     "files": [{"file": 0, "name": "a"}, {"file": 1, "name": "b", "later": []}], "inline": "aGVsbG8="}
                ]},
                {"subtask": 1, "later": {}, "states": [
                    {"name": "table", "partition": {"by": "key-groups", "range": {"first": 64, "count": 64}},
                     "files": [{"file": 1, "name": "b"}, {"file": 2, "name": "c"}]}
                ]}
            ]},
            {"id": "source", "parallelism": 1, "max_parallelism": 128, "subtasks": [
                {"subtask": 0, "states": [
                    {"name": "offsets", "partition": {"by": "split", "elements": 3}, "files": [{"file": 3, "name": "d"}]},
                    {"name": "config", "partition": {"by": "broadcast"}, "inline": ""},
                    {"name": "all", "partition": {"by": "union"}}
                ]}
            ]}
        ]
    })
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap()
}

#[test]
fn a_manifest_says_what_there_is_and_where() {
    let lookup = Lookup::new(at("gs://b/jobs/orders/chk-7"));
    let snapshot = NativeFormat
        .read_with_references(&bytes(&sample()), &lookup)
        .unwrap();
    assert_eq!(
        (snapshot.checkpoint_id, snapshot.kind),
        (7, Kind::Checkpoint)
    );
    let objects: Vec<_> = snapshot
        .objects
        .iter()
        .map(|o| {
            (
                o.location.to_string(),
                o.scope,
                o.size.bytes(),
                o.references,
                o.relative.is_some(),
            )
        })
        .collect();
    let expected = [
        ("s3://other/job/shared/y", Scope::Shared, 30, 1, false),
        (
            "gs://b/jobs/orders/chk-7/deep/own-2",
            Scope::Exclusive,
            40,
            1,
            true,
        ),
        (
            "gs://b/jobs/orders/chk-7/own-1",
            Scope::Exclusive,
            10,
            1,
            true,
        ),
        ("gs://b/jobs/orders/shared/x", Scope::Shared, 20, 2, false),
    ];
    assert_eq!(objects.len(), 4);
    for (found, (at, scope, size, references, relative)) in objects.iter().zip(expected) {
        assert_eq!(
            *found,
            (at.to_string(), scope, Some(size), references, relative)
        );
    }
    let counts = &snapshot.operators[0];
    assert_eq!(
        (
            counts.references,
            counts.referenced_bytes,
            counts.inlined_bytes
        ),
        (4, 80, 5)
    );
    assert_eq!(snapshot.inlined, (2, 5));
    let references = snapshot.references.unwrap();
    assert_eq!(references.handles.len(), 5);
    assert_eq!(references.operator_states.len(), 3);
    let paths = NativeFormat.absolute_paths(&bytes(&sample()), 9).unwrap();
    assert_eq!(paths, ["s3://other/job/shared/y"]);
    let manifest = Manifest::decode(&bytes(&sample())).unwrap();
    let state = &manifest.operators[0].subtasks[0].states[0];
    assert_eq!(state.inline_bytes().unwrap().unwrap(), b"hello");
    assert_eq!(ManifestState::encode_inline(b"hello"), "aGVsbG8=");
}

#[test]
fn what_is_not_known_survives_a_rewrite_and_a_decoding() {
    let lookup = Lookup::new(at("gs://b/jobs/orders/chk-7"));
    let to = at("az://c/forks/chk-7");
    let new_place = |old: &forkpoint::store::Location| match old.name() {
        "x" => to.parent().unwrap().join("shared/x-1"),
        "y" => Ok(at("az://d/y \"quoted\"")),
        name => to.join(name),
    };
    let before = bytes(&sample());
    let written = NativeFormat
        .rewrite(&before, &lookup, &to, &new_place)
        .unwrap();
    let mut expected = sample();
    let paths = ["own-1", "../shared/x-1", "az://d/y \"quoted\"", "own-2"];
    for (n, path) in paths.iter().enumerate() {
        expected["files"][n]["path"] = json!(path);
    }
    assert_eq!(written, bytes(&expected), "every other byte stays");
    // The new text has escapes, so that it cannot be pointed into: what it means stays.
    let lookup = Lookup::new(to.clone());
    let same = |old: &forkpoint::store::Location| Ok(old.clone());
    let again = NativeFormat.rewrite(&written, &lookup, &to, &same).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), expected);

    let manifest = Manifest::decode(&before).unwrap();
    let encoded: Value = serde_json::from_slice(&manifest.encode().unwrap()).unwrap();
    assert_eq!(encoded["later"], sample()["later"]);
    assert_eq!(encoded["files"][0]["later"], json!(true));
    assert_eq!(encoded["operators"][0]["subtasks"][1]["later"], json!({}));
    assert_eq!(
        Manifest::decode(&manifest.encode().unwrap()).unwrap(),
        manifest
    );
}

#[test]
fn a_newer_version_is_refused_whatever_else_it_says() {
    let newer = br#"{"format": "forkpoint-snapshot", "version": 2, "files": "elsewhere"}"#;
    let e = Manifest::decode(newer).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.next_step().is_some());
    let other = br#"{"format": "something", "version": 1}"#;
    assert_eq!(
        Manifest::decode(other).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn contradictions_are_named() {
    let cases: &[(&str, Value, &str)] = &[
        ("/number", json!(-1), "number"),
        ("/files/0/sha256", json!("zz"), "SHA-256"),
        ("/files/0/size", json!(-5), "byte"),
        ("/files/0/path", json!("../../x"), "files[0].path"),
        ("/files/0/path", json!(""), "files[0].path"),
        ("/files/0/path", json!("a/../../x"), "files[0].path"),
        ("/files/3/path", json!("own-1"), "two digests"),
        (
            "/operators/0/parallelism",
            json!(0),
            "operators[0].parallelism",
        ),
        (
            "/operators/0/parallelism",
            json!(40_000),
            "operators[0].parallelism",
        ),
        (
            "/operators/0/max_parallelism",
            json!(4_000_000_000u32),
            "max_parallelism",
        ),
        ("/operators/1/id", json!("counts"), "operators[1]"),
        (
            "/operators/0/subtasks/1/subtask",
            json!(0),
            "operators[0].subtasks[1]",
        ),
        (
            "/operators/0/subtasks/1/subtask",
            json!(2),
            "operators[0].subtasks[1]",
        ),
        (
            "/operators/0/subtasks/0/states/0/files/0/file",
            json!(4),
            "states[0].files[0]",
        ),
        (
            "/operators/0/subtasks/0/states/0/partition/range/count",
            json!(129),
            "states[0]",
        ),
        (
            "/operators/0/subtasks/0/states/0/partition/range/first",
            json!(65_000),
            "states[0]",
        ),
        (
            "/operators/0/subtasks/0/states/0/partition/by",
            json!("luck"),
            "byte",
        ),
        ("/kind", json!("other"), "byte"),
    ];
    let lookup = Lookup::new(at("gs://b/jobs/orders/chk-7"));
    for (pointer, value, named) in cases {
        let mut document = sample();
        *document.pointer_mut(pointer).unwrap() = value.clone();
        let e = NativeFormat.read(&bytes(&document), &lookup).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{pointer}: {e}");
        assert!(e.to_string().contains(named), "{pointer}: {e}");
    }
    let mut large = sample();
    large["operators"][1]["subtasks"][0]["states"][1]["inline"] = json!("A".repeat(1_500_000));
    let e = NativeFormat.read(&bytes(&large), &lookup).unwrap_err();
    assert!(e.to_string().contains("inside the manifest"), "{e}");
    let mut no_base64 = Manifest::decode(&bytes(&sample())).unwrap();
    let state = &mut no_base64.operators[0].subtasks[0].states[0];
    state.inline = Some("*".into());
    assert_eq!(state.inline_bytes().unwrap_err().kind(), ErrorKind::Corrupt);
    let mut no_number = Manifest::decode(&bytes(&sample())).unwrap();
    no_number.metrics.insert("loss".into(), f64::NAN);
    assert_eq!(no_number.encode().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn damage_is_an_error_with_the_byte_and_never_a_panic() {
    let lookup = Lookup::new(at("gs://b/jobs/orders/chk-7"));
    let whole = bytes(&sample());
    for end in 0..whole.len() {
        let e = NativeFormat.read(&whole[..end], &lookup).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "cut at {end}: {e}");
        assert!(e.to_string().contains("at byte"), "cut at {end}: {e}");
    }
    let mut random = StdRng::seed_from_u64(7);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..damaged.len());
            damaged[at] = random.random();
        }
        let read = NativeFormat.read_with_references(&damaged, &lookup);
        if let Err(e) = &read {
            refused += 1;
            assert!(
                matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{e:?}"
            );
        }
        let same = |old: &forkpoint::store::Location| Ok(old.clone());
        let rewritten = NativeFormat.rewrite(&damaged, &lookup, lookup.directory(), &same);
        // What can be read can be rewritten, and reads the same.
        if let (Ok(before), Ok(bytes)) = (&read, &rewritten) {
            assert_eq!(
                *before,
                NativeFormat.read_with_references(bytes, &lookup).unwrap()
            );
        }
        assert!(read.is_err() || rewritten.is_ok());
    }
    assert!(refused > 10_000, "{refused}");
    let deep = format!(
        "{{\"format\": \"forkpoint-snapshot\", \"x\": {}",
        "[".repeat(1_000_000)
    );
    let e = NativeFormat.read(deep.as_bytes(), &lookup).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_manifest_that_is_too_large_is_not_read() {
    let (dir, root) = temp();
    let stores = local_stores();
    let folder = dir.path().join("chk-1");
    std::fs::create_dir_all(&folder).unwrap();
    let file = std::fs::File::create(folder.join(COMMIT_OBJECT)).unwrap();
    // One byte too much would do; of this much reading would not end.
    file.set_len(MANIFEST_LIMIT_BYTES << 14).unwrap();
    let e = CommitObject::read(&stores, &root.join("chk-1").unwrap())
        .await
        .unwrap_err();
    assert!(
        e.to_string().contains(&MANIFEST_LIMIT_BYTES.to_string()),
        "{e}"
    );
    // A clean sees it, and deletes nothing.
    let (code, _) = run_json(&["usage", &root.to_string()]);
    assert_eq!(code, 4);
}

#[test]
fn a_damaged_manifest_blocks_a_clean_and_the_commands_name_it() {
    let (dir, root) = temp();
    let folder = dir.path().join("job/chk-1");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join(COMMIT_OBJECT),
        b"{\"format\": \"forkpoint-snapshot\", ",
    )
    .unwrap();
    let snapshot = root.join("job/chk-1").unwrap().to_string();
    let shown = run(&["show", &snapshot]);
    assert_eq!(shown.status.code(), Some(5));
    let text = String::from_utf8(shown.stderr).unwrap();
    assert!(
        text.contains(COMMIT_OBJECT) && text.contains("at byte 32"),
        "{text}"
    );
    assert_eq!(run(&["verify", &snapshot]).status.code(), Some(5));
    assert_eq!(run(&["why", &snapshot]).status.code(), Some(4));
    let plan = dir.path().join("plan");
    let cleaned = run(&["clean", &root.to_string(), "--out", plan.to_str().unwrap()]);
    assert_eq!(cleaned.status.code(), Some(4));
    let nothing = run(&["show", &root.to_string()]);
    let text = String::from_utf8(nothing.stderr).unwrap();
    assert!(
        text.contains(COMMIT_OBJECT) && text.contains("_metadata"),
        "{text}"
    );
}
